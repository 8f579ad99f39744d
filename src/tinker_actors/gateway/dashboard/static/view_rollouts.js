// Rollouts: the episodes that a run recorded, by pages.

import { get } from "./api.js";
import { addressOf, el, fill, tableHead } from "./dom.js";
import { number, short } from "./format.js";

const PAGE = 50;
const ORDERS = [
  ["newest", "Newest"],
  ["oldest", "Oldest"],
  ["best", "Best reward"],
  ["worst", "Least reward"],
];
const COLUMNS = [
  ["Step", "num"],
  ["Episode"],
  ["End"],
  ["Reward", "num"],
  ["Seats"],
  ["Turns", "num"],
  ["Tokens", "num"],
];

/** The episodes of a run, with what they are chosen by. */
export async function rolloutsList(page, job, query) {
  const list = new RolloutsList(page, job, query);
  await list.load(0);
  list.filters();
  return list;
}

class RolloutsList {
  constructor(page, job, query) {
    this.page = page;
    this.job = job;
    const asked = (name, usual) => [name, query.get(name) ?? usual];
    this.chosen = Object.fromEntries([
      asked("order", "newest"),
      ...["step", "seat", "policy", "failed"].map((name) => asked(name, "")),
    ]);
    this.controls = el("div", { class: "row" });
    this.body = el("tbody");
    this.table = el(
      "div",
      { class: "panel scroll" },
      el("table", { class: "episodes" }, tableHead(COLUMNS), this.body),
    );
    this.empty = el("div", { class: "panel empty" });
    this.pages = el("div", { class: "row apart" });
    this.fresh = el("button", { type: "button", disabled: true, onclick: () => this.load(0) }, "Show newer episodes");
    this.element = el("div", { class: "stack" }, this.controls, this.table, this.empty, this.pages);
  }

  async load(offset) {
    this.found = await get(`/jobs/${this.job}/episodes`, { query: { ...this.chosen, offset, limit: PAGE } });
    this.fresh.disabled = true;
    this.draw(offset);
  }

  async choose(change) {
    Object.assign(this.chosen, change);
    history.replaceState(null, "", addressOf(`/job/${this.job}/rollouts`, this.chosen));
    await this.load(0);
  }

  on(name, data) {
    if (name !== "metrics" || data.job !== this.job || !data.records.some((record) => record.kind === "step")) return;
    if (this.found.all === 0)
      this.load(0).catch(() => {}); // the stream says if the gateway is gone
    else this.fresh.disabled = this.chosen.order !== "newest" || Boolean(this.chosen.step);
  }

  draw(offset) {
    const { episodes, all, found } = this.found;
    fill(this.body, episodes.map(this.row, this));
    const none = episodes.length === 0;
    this.table.hidden = this.pages.hidden = none;
    this.empty.hidden = !none;
    const unlike = [el("strong", {}, "No episode is like that"), `There are ${all}; choose another step or seat.`];
    const fresh = [el("strong", {}, "No episodes yet"), "A run of reinforcement learning records some of every step."];
    fill(this.empty, all ? unlike : fresh);
    const go = (text, to, possible) =>
      el("button", { type: "button", disabled: !possible, onclick: () => this.load(to) }, text);
    fill(
      this.pages,
      el("span", { class: "muted small" }, `${offset + 1} to ${offset + episodes.length} of ${found}`),
      el(
        "div",
        { class: "row" },
        go("Back", Math.max(0, offset - PAGE), offset > 0),
        go("Further", offset + PAGE, offset + PAGE < found),
      ),
    );
  }

  row(entry) {
    const address = addressOf(`/job/${this.job}/rollouts/${encodeURIComponent(entry.id)}`, this.chosen);
    const largest = Math.max(1e-9, ...this.found.episodes.map((other) => Math.abs(other.reward)));
    return el(
      "tr",
      {},
      el("td", { class: "num" }, String(entry.step)),
      el("td", { class: "mono" }, el("a", { href: address }, entry.id)),
      el("td", {}, entry.failed ? el("span", { class: "state", "data-tone": "bad" }, entry.end) : entry.end),
      el(
        "td",
        { class: "num" },
        rewardBar(entry.reward, largest),
        el("span", { class: "value" }, number(entry.reward)),
      ),
      el("td", { class: "small" }, entry.seats.flatMap(seatNote)),
      el("td", { class: "num" }, number(entry.turns)),
      el("td", { class: "num" }, number(entry.tokens)),
    );
  }

  filters() {
    const { steps, seats, policies } = this.found;
    const select = (label, key, options) => {
      const made = options.map(([value, text]) => el("option", { value, selected: value === this.chosen[key] }, text));
      const change = (event) => this.choose({ [key]: event.target.value });
      return el("label", { class: "field" }, label, el("select", { onchange: change }, made));
    };
    const any = (label, key, values, shown) =>
      values.length > 1 || this.chosen[key]
        ? select(label, key, [["", "all"], ...values.map((value) => [value, shown(value)])])
        : null;
    const step = {
      type: "number",
      min: steps?.[0] ?? 0,
      max: steps?.[1],
      placeholder: "all",
      value: this.chosen.step,
      onchange: (event) => this.choose({ step: event.target.value }),
    };
    const failed = {
      type: "checkbox",
      checked: this.chosen.failed === "true",
      onchange: (event) => this.choose({ failed: event.target.checked ? "true" : "" }),
    };
    fill(
      this.controls,
      select("Order", "order", ORDERS),
      el("label", { class: "field" }, "Step", el("input", step)),
      any("Seat", "seat", seats, (seat) => seat),
      any("Policy", "policy", policies, short),
      el("label", { class: "field last" }, el("input", failed), el("span", {}, "Failed only")),
      this.fresh,
    );
  }
}

function seatNote(seat, at, seats) {
  const frozen = seat.trainable ? "" : " frozen";
  const alone = seat.policy ? `, played by ${seat.policy}` : "";
  const note = seats.length > 1 ? ` ${number(seat.reward)}${frozen}` : alone;
  return [at ? ", " : "", seat.seat, el("span", { class: "muted" }, note)];
}

/** How large a reward is among those shown: a short bar to the left or right of zero. */
function rewardBar(reward, largest) {
  const bar = el("span", { class: `reward ${reward < 0 ? "minus" : "plus"}`, "aria-hidden": "true" }, el("i"));
  bar.firstChild.style.width = `${(50 * Math.abs(reward)) / largest}%`;
  return bar;
}
