// A grid of charts: the metrics of one run or of several, with what they are looked at through.

import { Chart } from "./chart.js";
import { el, fill, setText } from "./dom.js";

// what every run is asked for first: the first of the keys that a run has
const MAIN = [
  ["Reward", ["reward"]],
  ["Loss", ["loss", "train_loss_sum"]],
  ["KL", ["kl", "train_kl_k3", "train_kl_k1"]],
  ["Staleness", ["staleness_mean"]],
  ["Tokens per second", ["tokens_per_second"]],
  ["Entropy", ["train_entropy_mean"]],
];
const LOOK = "tinker-actors-curves";

/** Charts of runs, redrawn as their metrics come in. */
export class Curves {
  /** `metrics` is where the values are. */
  constructor(metrics) {
    this.metrics = metrics;
    this.runs = []; // {job, label, place}
    this.charts = new Map();
    this.look = { log: false, weight: 0, time: false, more: [], ...JSON.parse(localStorage.getItem(LOOK) ?? "{}") };
    this.grid = el("div", { class: "charts" });
    this.thinned = el("p", { class: "muted small", hidden: true });
    this.names = el("div", { class: "chips names" });
    this.find = el("input", {
      type: "search",
      placeholder: "Find a metric",
      "aria-label": "Find a metric",
      oninput: () => this.list(),
    });
    this.element = el(
      "div",
      { class: "stack" },
      this.controls(),
      this.thinned,
      this.grid,
      el(
        "details",
        { class: "panel more", ontoggle: () => this.list() },
        el("summary", {}, "More metrics"),
        el("div", { class: "body stack" }, this.find, this.names),
      ),
    );
    this.listener = (job) => this.runs.some((run) => run.job === job) && this.soon();
    metrics.listeners.add(this.listener);
  }

  close() {
    this.metrics.listeners.delete(this.listener);
    this.theme?.disconnect();
  }

  /** Show these runs: `{job, label, place}`. */
  show(runs) {
    this.runs = runs;
    this.theme ??= new MutationObserver(() => this.soon());
    this.theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.soon();
  }

  controls() {
    const weight = el("output", {}, String(this.look.weight));
    const box = (label, key) =>
      el(
        "label",
        { class: "field" },
        el("input", {
          type: "checkbox",
          checked: this.look[key],
          onchange: (event) => this.set({ [key]: event.target.checked }),
        }),
        el("span", {}, label),
      );
    return el(
      "div",
      { class: "row curves-controls" },
      box("Log scale", "log"),
      box("Over time", "time"),
      el(
        "label",
        { class: "field" },
        "Smoothing",
        el("input", {
          type: "range",
          min: 0,
          max: 0.98,
          step: 0.02,
          value: this.look.weight,
          oninput: (event) => {
            setText(weight, event.target.value);
            this.set({ weight: Number(event.target.value) });
          },
        }),
        weight,
      ),
    );
  }

  set(change) {
    Object.assign(this.look, change);
    localStorage.setItem(LOOK, JSON.stringify(this.look));
    this.soon();
  }

  soon() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      this.draw();
    });
  }

  draw() {
    const jobs = this.runs.map((run) => run.job);
    const wanted = [...MAIN, ...this.look.more.map((name) => [name, [name]])];
    const seen = new Set();
    for (const [title, keys] of wanted) {
      const lines = this.runs.flatMap((run) => this.lines(run, keys));
      const main = MAIN.some((entry) => entry[0] === title);
      if (!lines.length && !(main && title === "Reward" && !this.metrics.names(jobs).length)) continue;
      seen.add(title);
      this.card(title, main).show(lines, this.look);
    }
    for (const [title, chart] of this.charts) {
      if (seen.has(title)) continue;
      chart.card.remove();
      this.charts.delete(title);
    }
    const every = Math.max(1, ...jobs.map((job) => this.metrics.run(job).every));
    this.thinned.hidden = every === 1;
    setText(this.thinned, `Long runs: of the steps before this page was opened one in ${every} is drawn.`);
    this.list();
  }

  lines(run, keys) {
    const key = keys.find((name) => this.metrics.column(run.job, name));
    const both = [
      [key && this.metrics.column(run.job, key), run.label, false],
      [this.metrics.column(run.job, keys[0], true), `${run.label}, evaluation`, true],
    ];
    return both
      .filter(([column]) => column)
      .map(([column, label, marks]) => ({
        label,
        place: run.place,
        x: this.look.time ? column.time : column.x,
        y: column.y,
        marks,
      }));
  }

  card(title, main) {
    let chart = this.charts.get(title);
    if (!chart) {
      chart = new Chart(title, (x) => this.charts.forEach((other) => other === chart || other.mark(x)));
      const head = el(
        "div",
        { class: "row apart" },
        el("h3", { class: main ? null : "mono" }, title),
        main
          ? null
          : el(
              "button",
              {
                type: "button",
                class: "quiet icon",
                "aria-label": `Remove ${title}`,
                onclick: () => this.toggle(title),
              },
              "×",
            ),
      );
      chart.card = el("section", { class: "panel card", "data-metric": title }, head, chart.element);
      this.charts.set(title, chart);
      this.grid.append(chart.card);
    }
    return chart;
  }

  toggle(name) {
    const more = this.look.more.includes(name)
      ? this.look.more.filter((other) => other !== name)
      : [...this.look.more, name];
    this.set({ more });
  }

  list() {
    if (!this.names.closest("details").open) return;
    const text = this.find.value.toLowerCase();
    const names = this.metrics
      .names(this.runs.map((run) => run.job))
      .filter((name) => name.toLowerCase().includes(text));
    const state = JSON.stringify([names, this.look.more]);
    if (state === this.listed) return; // what has the focus keeps it
    this.listed = state;
    fill(
      this.names,
      names.length
        ? names.map((name) =>
            el(
              "button",
              {
                type: "button",
                class: "chip mono",
                "aria-pressed": String(this.look.more.includes(name)),
                onclick: () => this.toggle(name),
              },
              name,
            ),
          )
        : el("p", { class: "muted" }, "No metric is called so."),
    );
  }
}

/** What the lines of several runs are called. */
export function legend(runs) {
  return el(
    "div",
    { class: "legend" },
    runs.map((run) => el("span", {}, el("i", { class: `swatch run-${run.place % 8}` }), run.label)),
    el("span", { class: "muted" }, el("i", { class: "diamond" }), "evaluation"),
  );
}
