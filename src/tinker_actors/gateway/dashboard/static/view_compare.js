// Curves: the metrics of several runs in the same charts.

import { get } from "./api.js";
import { Curves, legend } from "./curves.js";
import { badge, el, fill } from "./dom.js";
import { number } from "./format.js";

const MOST = 8;

/** Curves of the runs that are chosen; of the newest ones if none is. */
export async function compareView(page, query) {
  const found = page.about.takes_jobs
    ? (await get("/jobs", { query: { limit: 60 } })).jobs.filter((job) => job.started)
    : [];
  const jobs = new Map(found.map((job) => [job.id, job]));
  const asked = [...new Set(query.getAll("run"))].slice(0, MOST);
  for (const id of asked) if (!jobs.has(id)) jobs.set(id, await get(`/jobs/${id}`));
  const places = new Map(); // a run keeps its colour as long as it is shown
  const curves = new Curves(page.metrics);
  const labels = el("div");
  const list = el("div", { class: "picker" });
  const none = el(
    "div",
    { class: "panel empty" },
    el("strong", {}, "No run is chosen"),
    "Choose up to eight in the list.",
  );
  const measured = found.filter((job) => job.progress?.headline);
  for (const id of asked.length ? asked : measured.slice(0, 2).map((job) => job.id)) choose(id, true);

  function choose(id, on) {
    if (!on) places.delete(id);
    else if (places.size < MOST)
      places.set(
        id,
        [...Array(MOST).keys()].find((place) => ![...places.values()].includes(place)),
      );
  }

  function runs() {
    const names = [...places.keys()].map((id) => jobs.get(id).name);
    return [...places].map(([job, place]) => {
      const { name, number: n } = jobs.get(job);
      return { job, place, label: names.filter((other) => other === name).length > 1 ? `${name} (${n})` : name };
    });
  }

  async function draw() {
    const shown = runs();
    await Promise.all(shown.map(({ job }) => page.load(job)));
    fill(labels, shown.length ? legend(shown) : null);
    curves.show(shown);
    curves.element.hidden = !shown.length;
    none.hidden = shown.length > 0;
    for (const [id, entry] of entries) {
      entry.box.checked = places.has(id);
      entry.box.disabled = !places.has(id) && places.size >= MOST;
      entry.swatch.className = places.has(id) ? `swatch run-${places.get(id)}` : "swatch";
    }
  }

  const entries = new Map(
    [...jobs.values()].map((job) => {
      const swatch = el("i", { class: "swatch" });
      const box = el("input", {
        type: "checkbox",
        onchange: async (event) => {
          choose(job.id, event.target.checked);
          history.replaceState(
            null,
            "",
            `#/curves?${new URLSearchParams([...places.keys()].map((id) => ["run", id]))}`,
          );
          await draw();
          page.follow({ runs: [...places.keys()] });
        },
      });
      const headline = job.progress?.headline;
      const label = el(
        "label",
        {},
        box,
        swatch,
        el("span", { class: "name" }, job.name),
        el("span", { class: "muted small num" }, headline ? `${headline.metric} ${number(headline.value)}` : ""),
        badge(job.state),
      );
      list.append(label);
      return [job.id, { box, swatch }];
    }),
  );
  await draw();

  const element = jobs.size
    ? el(
        "div",
        { class: "stack" },
        el("h1", {}, "Curves"),
        el("details", { class: "panel", open: innerWidth > 760 }, el("summary", {}, "Runs"), list),
        labels,
        none,
        curves.element,
      )
    : el(
        "div",
        { class: "empty" },
        el("strong", {}, "No runs yet"),
        "The curves of every job that was started appear here.",
      );
  return {
    name: "curves",
    title: "Curves",
    element,
    wanted: { runs: [...places.keys()] },
    close: () => curves.close(),
  };
}
