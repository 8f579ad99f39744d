// Jobs: all that were submitted, the newest first, as they move.

import { get } from "./api.js";
import { addressOf, el, fill, setText, tableHead } from "./dom.js";
import { JobRow } from "./job_row.js";

const ACTIVE = ["queued", "starting", "running", "cancelling"];
const CHOICES = [
  ["All", []],
  ["Active", ACTIVE],
  ["Succeeded", ["succeeded"]],
  ["Failed", ["failed"]],
  ["Cancelled", ["cancelled"]],
];
const COLUMNS = [["State"], ["Job"], ["Kind"], ["Progress"], ["Latest", "num"], ["Submitted"], ["Took", "num"], [""]];
const PAGE = 50;
const TYPING = 250; // ms after the last letter

/** The list of jobs. */
export async function jobsView(page, query) {
  const view = new JobsView(page, query);
  if (page.about.takes_jobs) await view.load(true);
  return view;
}

class JobsView {
  name = "jobs";
  title = "Jobs";
  wanted = { progress: true };

  constructor(page, query) {
    this.page = page;
    this.chosen = { state: query.getAll("state"), kind: query.get("kind") ?? "", text: query.get("text") ?? "" };
    this.rows = new Map(); // by the job's id
    this.last = null; // number of the oldest that is shown
    this.body = el("tbody");
    this.table = el("div", { class: "scroll" }, el("table", { class: "jobs" }, tableHead(COLUMNS), this.body));
    this.empty = el("div", { class: "empty", hidden: true });
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.load(false) }, "Show older jobs");
    this.chips = el("div", { class: "chips", role: "group", "aria-label": "State" }, CHOICES.map(this.chip, this));
    const taken = [
      this.chips,
      el("div", { class: "panel" }, this.table, this.empty),
      el("div", { class: "row" }, this.more),
    ];
    const none = el(
      "div",
      { class: "empty" },
      el("strong", {}, "This gateway takes no jobs"),
      "It serves models only.",
    );
    this.element = el("div", { class: "stack" }, this.head(), page.about.takes_jobs ? taken : none);
    this.ticking = setInterval(() => this.rows.forEach((row) => row.tick()), 1000);
  }

  close() {
    clearInterval(this.ticking);
  }

  head() {
    const kinds = this.page.about.kinds.map((kind) =>
      el("option", { value: kind, selected: kind === this.chosen.kind }, kind),
    );
    const kind = { "aria-label": "Kind", onchange: (event) => this.choose({ kind: event.target.value }) };
    const find = {
      type: "search",
      placeholder: "Name or id",
      "aria-label": "Find jobs by name or id",
      value: this.chosen.text,
      oninput: (event) => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.choose({ text: event.target.value.trim() }), TYPING);
      },
    };
    const select = el("select", kind, el("option", { value: "" }, "Every kind"), kinds);
    return el(
      "div",
      { class: "row apart" },
      el("h1", {}, "Jobs"),
      el("div", { class: "row" }, select, el("input", find)),
    );
  }

  chip([label, states]) {
    const choose = () => this.choose({ state: states });
    return el("button", { type: "button", class: "chip", onclick: choose }, `${label} `, el("b"));
  }

  async choose(change) {
    Object.assign(this.chosen, change);
    history.replaceState(null, "", addressOf("/jobs", this.chosen));
    await this.load(true);
  }

  /** Show the newest, or those before the oldest that is shown. */
  async load(anew) {
    const before = anew ? null : this.last;
    const found = await get("/jobs", { query: { ...this.chosen, before, limit: PAGE } });
    if (anew) {
      this.rows.clear();
      fill(this.body);
    }
    for (const job of found.jobs) this.put(job, false);
    this.last = found.jobs.at(-1)?.number ?? this.last;
    this.more.hidden = !found.more;
    this.count(found.counts);
  }

  /** What moved before the stream began. */
  async again() {
    const found = await get("/jobs", { query: { ...this.chosen, limit: PAGE } });
    for (const job of found.jobs.reverse()) this.put(job, true);
    this.count(found.counts);
  }

  put(job, first) {
    const known = this.rows.get(job.id);
    if (known) return known.update(job);
    const row = new JobRow(this.page, job, (id) => this.forget(id));
    this.rows.set(job.id, row);
    if (first) this.body.prepend(row.element);
    else this.body.append(row.element);
  }

  count(counts) {
    const sum = (states) => states.reduce((all, state) => all + (counts[state] ?? 0), 0);
    const all = sum(Object.keys(counts));
    CHOICES.forEach(([, states], at) => {
      const chip = this.chips.children[at];
      chip.setAttribute("aria-pressed", String(states.join() === this.chosen.state.join()));
      setText(chip.lastChild, String(states.length ? sum(states) : all));
    });
    const none = this.rows.size === 0;
    this.empty.hidden = !none;
    this.table.hidden = none;
    if (!none) return;
    const unlike = [el("strong", {}, "No job is like that"), "Choose other states, another kind or another name."];
    const command = el("pre", {}, "tinker-actors submit config.toml");
    const fresh = [el("strong", {}, "No jobs yet"), "What is submitted appears here at once.", el("br"), command];
    fill(this.empty, all ? unlike : fresh);
  }

  fits(job) {
    const { state, kind, text } = this.chosen;
    return (
      (!state.length || state.includes(job.state)) &&
      (!kind || kind === job.kind) &&
      (!text || job.name.toLowerCase().includes(text.toLowerCase()) || job.id.includes(text))
    );
  }

  on(name, data) {
    if (!this.page.about.takes_jobs) return;
    if (name === "hello") this.again().catch(() => {}); // the stream says if the gateway is gone
    if (name === "progress") this.rows.get(data.id)?.update(data);
    if (name === "job") this.moved(data);
    if (name === "gone") this.forget(data.id, data.counts);
  }

  moved({ job, counts }) {
    const row = this.rows.get(job.id);
    const fits = this.fits(job);
    if (row && !fits) this.forget(job.id);
    else if (fits && (row || this.last === null || job.number > this.last)) this.put(job, !row);
    this.count(counts);
  }

  /** Show a job no longer; `counts` where they are known. */
  forget(id, counts) {
    this.rows.get(id)?.element.remove();
    this.rows.delete(id);
    if (counts) this.count(counts);
  }
}
