// Jobs: all that were submitted, the newest first, as they move.

import { get, post } from "./api.js";
import { badge, confirmed, el, fill, setText } from "./dom.js";
import { moment, number, span } from "./format.js";

const ACTIVE = ["queued", "starting", "running", "cancelling"];

/** The list of jobs. */
export async function jobsView(page, query) {
  const chosen = { state: query.getAll("state"), kind: query.get("kind") ?? "", text: query.get("text") ?? "" };
  const rows = new Map(); // job id -> {element, update}
  const body = el("tbody");
  const chips = el("div", { class: "chips", role: "group", "aria-label": "State" });
  const empty = el("div", { class: "empty", hidden: true });
  const more = el("button", { type: "button", hidden: true, onclick: () => load(false) }, "Show older jobs");
  const table = el(
    "table",
    { class: "jobs" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ["State", "Job", "Kind", "Progress", "Latest", "Submitted", "Took", ""].map((text, at) =>
          el("th", { class: at === 4 || at === 6 ? "num" : null, scope: "col" }, text),
        ),
      ),
    ),
    body,
  );
  let counts = {};
  let last = null;

  async function load(anew) {
    const found = await get("/jobs", { query: { ...chosen, before: anew ? null : last, limit: 50 } });
    if (anew) {
      rows.clear();
      fill(body);
    }
    for (const job of found.jobs) add(job, false);
    last = found.jobs.at(-1)?.number ?? last;
    more.hidden = !found.more;
    count(found.counts);
  }

  /** What moved before the stream began. */
  async function again() {
    const found = await get("/jobs", { query: { ...chosen, limit: 50 } });
    for (const job of found.jobs.reverse()) add(job, true);
    count(found.counts);
  }

  function add(job, first) {
    const known = rows.get(job.id);
    if (known) return known.update(job);
    const made = jobRow(page, job);
    rows.set(job.id, made);
    if (first) body.prepend(made.element);
    else body.append(made.element);
  }

  function count(given) {
    counts = given;
    const all = Object.values(counts).reduce((a, b) => a + b, 0);
    const active = ACTIVE.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
    const options = [
      ["All", [], all],
      ["Active", ACTIVE, active],
      ...["succeeded", "failed", "cancelled"].map((state) => [
        state[0].toUpperCase() + state.slice(1),
        [state],
        counts[state] ?? 0,
      ]),
    ];
    if (!chips.children.length) {
      fill(
        chips,
        options.map(([label, states]) =>
          el(
            "button",
            { type: "button", class: "chip", onclick: () => choose({ state: states }) },
            `${label} `,
            el("b"),
          ),
        ),
      );
    }
    options.forEach(([, states, n], at) => {
      chips.children[at].setAttribute("aria-pressed", String(states.join() === chosen.state.join()));
      setText(chips.children[at].lastChild, String(n));
    });
    const none = rows.size === 0;
    empty.hidden = !none;
    table.parentElement.hidden = none;
    if (none)
      fill(
        empty,
        ...(all
          ? [el("strong", {}, "No job is like that"), "Choose other states, another kind or another name."]
          : [
              el("strong", {}, "No jobs yet"),
              "What is submitted appears here at once.",
              el("br"),
              el("pre", {}, "tinker-actors submit config.toml"),
            ]),
      );
  }

  async function choose(change) {
    Object.assign(chosen, change);
    const query = new URLSearchParams(
      Object.entries(chosen).flatMap(([name, value]) =>
        [value]
          .flat()
          .filter(Boolean)
          .map((each) => [name, each]),
      ),
    );
    history.replaceState(null, "", `#/jobs${query.size ? `?${query}` : ""}`);
    await load(true);
  }

  function fits(job) {
    const text = chosen.text.toLowerCase();
    return (
      (!chosen.state.length || chosen.state.includes(job.state)) &&
      (!chosen.kind || chosen.kind === job.kind) &&
      (!text || job.name.toLowerCase().includes(text) || job.id.includes(text))
    );
  }

  let typing;
  const find = el("input", {
    type: "search",
    placeholder: "Name or id",
    "aria-label": "Find jobs by name or id",
    value: chosen.text,
    oninput: (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => choose({ text: event.target.value.trim() }), 250);
    },
  });
  const kind = el(
    "select",
    { "aria-label": "Kind", onchange: (event) => choose({ kind: event.target.value }) },
    el("option", { value: "" }, "Every kind"),
    page.about.kinds.map((each) => el("option", { value: each, selected: each === chosen.kind }, each)),
  );

  const element = el(
    "div",
    { class: "stack" },
    el("div", { class: "row apart" }, el("h1", {}, "Jobs"), el("div", { class: "row" }, kind, find)),
    chips,
    el("div", { class: "panel" }, el("div", { class: "scroll" }, table), empty),
    el("div", { class: "row" }, more),
  );
  if (page.about.takes_jobs) await load(true);
  else
    fill(
      element,
      el("div", { class: "empty" }, el("strong", {}, "This gateway takes no jobs"), "It serves models only."),
    );
  const ticking = setInterval(() => rows.forEach((row) => row.tick()), 1000);
  return {
    name: "jobs",
    title: "Jobs",
    element,
    wanted: { progress: true },
    on(name, data) {
      if (name === "hello") return again();
      if (name === "progress") return rows.get(data.id)?.update(data);
      if (name !== "job") return;
      const known = rows.has(data.job.id);
      const mine = fits(data.job);
      if (known && !mine && chosen.state.length) {
        rows.get(data.job.id).element.remove();
        rows.delete(data.job.id);
      } else if (mine && (known || last === null || data.job.number > last)) add(data.job, !known);
      count(data.counts);
    },
    close: () => clearInterval(ticking),
  };
}

function jobRow(page, job) {
  const state = el("td", { class: "cell-state" });
  const reason = el("div", { class: "muted small" });
  const bar = el("i");
  const steps = el("span", { class: "small muted num" });
  const now = el("td", { class: "num", "data-label": "Latest" });
  const took = el("td", { class: "num", "data-label": "Took" });
  const actions = el("td", { class: "cell-actions" });
  const element = el(
    "tr",
    { "data-job": job.id },
    state,
    el(
      "td",
      { class: "cell-name" },
      el("a", { href: `#/job/${job.id}` }, job.name),
      job.tenant !== page.about.tenant ? el("span", { class: "muted small" }, ` ${job.tenant}`) : null,
      reason,
    ),
    el("td", { "data-label": "Kind" }, job.kind),
    el("td", { class: "cell-progress" }, el("div", { class: "bar" }, bar), steps),
    now,
    el("td", { "data-label": "Submitted", title: new Date(job.submitted * 1000).toString() }, moment(job.submitted)),
    took,
    actions,
  );
  let shown = null;

  function update(given) {
    if (shown && given.moved < shown.moved) return; // an answer that was overtaken
    if (shown?.state !== given.state) {
      fill(state, badge(given.state));
      fill(actions, ...jobActions(page, given, update));
    }
    shown = given;
    setText(reason, given.detail || given.reason);
    reason.title = given.detail;
    const progress = given.progress;
    bar.style.width = `${100 * (progress?.share ?? 0)}%`;
    setText(steps, progress?.step ? `${progress.step}${progress.steps ? ` / ${progress.steps}` : ""}` : "–");
    setText(now, progress?.headline ? `${progress.headline.metric} ${number(progress.headline.value)}` : "–");
    tick();
  }

  function tick() {
    setText(took, shown.started ? span(Math.max(0, (shown.ended ?? Date.now() / 1000) - shown.started)) : "–");
  }

  update(job);
  return { element, update, tick };
}

/** The buttons that end or resume a job, if the caller may. */
export function jobActions(page, job, changed) {
  if (!page.about.may_end_jobs) return [];
  const act = async (what, title, text, action) => {
    if (!(await confirmed(title, text, action))) return;
    try {
      changed(await post(`/jobs/${job.id}/${what}`));
    } catch (error) {
      page.toast(error.message, true);
    }
  };
  if (job.can_cancel) {
    return [
      el(
        "button",
        {
          type: "button",
          "aria-label": `Cancel ${job.name}`,
          onclick: () =>
            act(
              "cancel",
              `Cancel ${job.name}?`,
              "Its process is told to end. What it has saved stays, and it can be resumed from there.",
              "Cancel the job",
            ),
        },
        "Cancel",
      ),
    ];
  }
  if (job.can_resume) {
    return [
      el(
        "button",
        {
          type: "button",
          "aria-label": `Resume ${job.name}`,
          onclick: () =>
            act(
              "resume",
              `Resume ${job.name}?`,
              "It is queued again and goes on from its last checkpoint.",
              "Resume the job",
            ),
        },
        "Resume",
      ),
    ];
  }
  return [];
}
