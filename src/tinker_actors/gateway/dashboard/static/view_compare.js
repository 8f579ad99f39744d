// Curves: the metrics of several runs in the same charts.

import { get } from "./api.js";
import { Curves, legend } from "./curves.js";
import { addressOf, badge, el, fill } from "./dom.js";
import { number } from "./format.js";

const MOST = 8;
const AT_FIRST = 2; // runs that are shown if none is chosen
const OFFERED = 60;

/** Curves of the runs that are chosen; of the newest ones if none is. */
export async function compareView(page, query) {
  const found = page.about.takes_jobs ? (await get("/jobs", { query: { limit: OFFERED } })).jobs : [];
  const jobs = new Map(found.filter((job) => job.started).map((job) => [job.id, job]));
  const asked = [...new Set(query.getAll("run"))].slice(0, MOST);
  for (const id of asked) if (!jobs.has(id)) jobs.set(id, await get(`/jobs/${id}`));
  const measured = [...jobs.values()].filter((job) => job.progress?.headline).map((job) => job.id);
  const view = new CompareView(page, jobs, asked.length ? asked : measured.slice(0, AT_FIRST));
  await view.draw();
  return view;
}

class CompareView {
  name = "curves";
  title = "Curves";

  constructor(page, jobs, chosen) {
    this.page = page;
    this.jobs = jobs;
    this.places = new Map(); // a run keeps its colour as long as it is shown
    this.entries = new Map();
    this.curves = new Curves(page.metrics);
    this.labels = el("div");
    const empty = { class: "panel empty" };
    this.none = el("div", empty, el("strong", {}, "No run is chosen"), "Choose up to eight in the list.");
    for (const id of chosen) this.choose(id, true);
    const list = el("div", { class: "picker" }, [...jobs.values()].map(this.entry, this));
    const runs = el("details", { class: "panel", open: innerWidth > 760 }, el("summary", {}, "Runs"), list);
    const shown = [runs, this.labels, this.none, this.curves.element];
    const nothing = [el("strong", {}, "No runs yet"), "The curves of every job that was started appear here."];
    const title = el("h1", {}, "Curves");
    this.element = el("div", { class: "stack" }, title, jobs.size ? shown : el("div", empty, nothing));
  }

  get wanted() {
    return { runs: [...this.places.keys()] };
  }

  close() {
    this.curves.close();
  }

  choose(id, on) {
    const taken = [...this.places.values()];
    const free = [...Array(MOST).keys()].find((place) => !taken.includes(place));
    if (!on) this.places.delete(id);
    else if (free !== undefined) this.places.set(id, free);
  }

  entry(job) {
    const swatch = el("i", { class: "swatch" });
    const change = async (event) => {
      this.choose(job.id, event.target.checked);
      history.replaceState(null, "", addressOf("/curves", { run: this.wanted.runs }));
      await this.draw();
      this.page.follow(this.wanted);
    };
    const box = el("input", { type: "checkbox", onchange: change });
    this.entries.set(job.id, { box, swatch });
    const headline = job.progress?.headline;
    const value = headline ? `${headline.metric} ${number(headline.value)}` : "";
    const note = el("span", { class: "muted small num" }, value);
    return el("label", {}, box, swatch, el("span", { class: "name" }, job.name), note, badge(job.state));
  }

  /** The chosen runs; those of one name are told apart by their jobs' numbers. */
  runs() {
    const names = this.wanted.runs.map((id) => this.jobs.get(id).name);
    return [...this.places].map(([job, place]) => {
      const { name, number } = this.jobs.get(job);
      const several = names.filter((other) => other === name).length > 1;
      return { job, place, label: several ? `${name} (${number})` : name };
    });
  }

  async draw() {
    const shown = this.runs();
    await Promise.all(shown.map(({ job }) => this.page.load(job)));
    fill(this.labels, shown.length ? legend(shown) : null);
    this.curves.show(shown);
    this.curves.element.hidden = !shown.length;
    this.none.hidden = shown.length > 0;
    for (const [id, { box, swatch }] of this.entries) {
      const place = this.places.get(id);
      box.checked = place !== undefined;
      box.disabled = place === undefined && this.places.size >= MOST;
      swatch.className = place === undefined ? "swatch" : `swatch run-${place}`;
    }
  }
}
