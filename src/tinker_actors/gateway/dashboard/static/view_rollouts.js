// Rollouts: the episodes that a run recorded, by pages.

import { get } from "./api.js";
import { el, fill } from "./dom.js";
import { number, short } from "./format.js";

const PAGE = 50;

/** The episodes of a run, with what they are chosen by. */
export async function rolloutsList(page, job, query) {
  const chosen = {
    order: query.get("order") ?? "newest",
    step: query.get("step") ?? "",
    seat: query.get("seat") ?? "",
    policy: query.get("policy") ?? "",
    failed: query.get("failed") ?? "",
  };
  let offset = 0;
  let found;
  const controls = el("div", { class: "row" });
  const body = el("tbody");
  const table = el(
    "table",
    { class: "episodes" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        [["Step", "num"], ["Episode"], ["End"], ["Reward", "num"], ["Seats"], ["Turns", "num"], ["Tokens", "num"]].map(
          ([text, cls]) => el("th", { class: cls ?? null, scope: "col" }, text),
        ),
      ),
    ),
    body,
  );
  const panel = el("div", { class: "panel scroll" }, table);
  const empty = el("div", { class: "panel empty" });
  const pages = el("div", { class: "row apart" });
  const fresh = el("button", { type: "button", disabled: true, onclick: () => load(0) }, "Show newer episodes");
  const element = el("div", { class: "stack" }, controls, panel, empty, pages);

  async function load(from) {
    offset = from;
    found = await get(`/jobs/${job}/episodes`, { query: { ...chosen, offset, limit: PAGE } });
    fresh.disabled = true;
    draw();
  }

  function address(id) {
    const query = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
    return `#/job/${job}/rollouts/${encodeURIComponent(id)}?${query}`;
  }

  function draw() {
    fill(
      body,
      found.episodes.map((entry) =>
        el(
          "tr",
          {},
          el("td", { class: "num" }, String(entry.step)),
          el("td", { class: "mono" }, el("a", { href: address(entry.id) }, entry.id)),
          el("td", {}, entry.failed ? el("span", { class: "state", "data-tone": "bad" }, entry.end) : entry.end),
          el(
            "td",
            { class: "num" },
            rewardBar(entry.reward, found.episodes),
            el("span", { class: "value" }, number(entry.reward)),
          ),
          el(
            "td",
            { class: "small" },
            entry.seats
              .map((seat, at) => [
                at ? ", " : "",
                seat.seat,
                el(
                  "span",
                  { class: "muted" },
                  entry.seats.length > 1
                    ? ` ${number(seat.reward)}${seat.trainable ? "" : " frozen"}`
                    : seat.policy
                      ? `, played by ${seat.policy}`
                      : "",
                ),
              ])
              .flat(),
          ),
          el("td", { class: "num" }, number(entry.turns)),
          el("td", { class: "num" }, number(entry.tokens)),
        ),
      ),
    );
    const none = found.episodes.length === 0;
    panel.hidden = pages.hidden = none;
    empty.hidden = !none;
    fill(
      empty,
      ...(found.all
        ? [el("strong", {}, "No episode is like that"), `There are ${found.all}; choose another step or seat.`]
        : [
            el("strong", {}, "No episodes yet"),
            "A run of reinforcement learning records some of every step, with each token's log-prob and advantage. Supervised runs have none.",
          ]),
    );
    fill(
      pages,
      el("span", { class: "muted small" }, `${offset + 1} to ${offset + found.episodes.length} of ${found.found}`),
      el(
        "div",
        { class: "row" },
        el(
          "button",
          { type: "button", disabled: offset === 0, onclick: () => load(Math.max(0, offset - PAGE)) },
          "Back",
        ),
        el(
          "button",
          { type: "button", disabled: offset + PAGE >= found.found, onclick: () => load(offset + PAGE) },
          "Further",
        ),
      ),
    );
    if (!controls.children.length) filters();
  }

  function filters() {
    const select = (label, key, options) =>
      el(
        "label",
        { class: "field" },
        label,
        el(
          "select",
          { onchange: (event) => choose({ [key]: event.target.value }) },
          options.map(([value, text]) => el("option", { value, selected: value === chosen[key] }, text)),
        ),
      );
    fill(
      controls,
      select("Order", "order", [
        ["newest", "Newest"],
        ["oldest", "Oldest"],
        ["best", "Best reward"],
        ["worst", "Least reward"],
      ]),
      el(
        "label",
        { class: "field" },
        "Step",
        el("input", {
          type: "number",
          min: found.steps?.[0] ?? 0,
          max: found.steps?.[1] ?? null,
          placeholder: "all",
          value: chosen.step,
          onchange: (event) => choose({ step: event.target.value }),
        }),
      ),
      found.seats.length > 1 || chosen.seat
        ? select("Seat", "seat", [["", "all"], ...found.seats.map((seat) => [seat, seat])])
        : null,
      found.policies.length > 1 || chosen.policy
        ? select("Policy", "policy", [["", "all"], ...found.policies.map((policy) => [policy, short(policy)])])
        : null,
      el(
        "label",
        { class: "field last" },
        el("input", {
          type: "checkbox",
          checked: chosen.failed === "true",
          onchange: (event) => choose({ failed: event.target.checked ? "true" : "" }),
        }),
        el("span", {}, "Failed only"),
      ),
      fresh,
    );
  }

  async function choose(change) {
    Object.assign(chosen, change);
    const query = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
    history.replaceState(null, "", `#/job/${job}/rollouts?${query}`);
    await load(0);
  }

  await load(0);
  return {
    element,
    on(name, data) {
      if (name !== "metrics" || data.job !== job || !data.records.some((record) => record.kind === "step")) return;
      if (found.all === 0) load(0).catch(() => {});
      else fresh.disabled = chosen.order !== "newest" || Boolean(chosen.step);
    },
  };
}

/** How large a reward is among those shown: a short bar to the left or right of zero. */
function rewardBar(reward, entries) {
  const largest = Math.max(1e-9, ...entries.map((entry) => Math.abs(entry.reward)));
  const bar = el("span", { class: `reward ${reward < 0 ? "minus" : "plus"}`, "aria-hidden": "true" }, el("i"));
  bar.firstChild.style.width = `${(50 * Math.abs(reward)) / largest}%`;
  return bar;
}
