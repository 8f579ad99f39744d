// What a job's page shows below its head, tab by tab.

import { get } from "./api.js";
import { Curves, legend } from "./curves.js";
import { badge, el, fill, setText } from "./dom.js";
import { moment } from "./format.js";
import { lineage } from "./lineage.js";
import { rolloutsList } from "./view_rollouts.js";

const POLICIES_APART = 5000; // ms between two looks, while the job goes on
const LOG_APART = 2000;

export const TABS = [
  ["curves", "Curves"],
  ["rollouts", "Rollouts"],
  ["policies", "Policies"],
  ["history", "History"],
  ["log", "Output"],
  ["config", "Configuration"],
];

const OPEN = {
  curves,
  rollouts: (page, view, query) => rolloutsList(page, view.job.id, query),
  policies,
  history,
  log,
  config,
};

/** A tab of a job's view: its `element`, what it does `on` events and when the job has `moved`, how to `close` it. */
export function openTab(name, page, view, query) {
  return (Object.hasOwn(OPEN, name) ? OPEN[name] : curves)(page, view, query);
}

async function curves(page, { job }) {
  const run = { job: job.id, label: job.name, place: 0 };
  await page.load(run.job);
  const shown = new Curves(page.metrics);
  shown.show([run]);
  return { element: el("div", { class: "stack" }, legend([run]), shown.element), close: () => shown.close() };
}

async function policies(page, { job }) {
  const element = el("div", { class: "stack" });
  const none = [el("strong", {}, "No snapshots yet"), "A run publishes its first one before training begins."];
  const load = async () => {
    const found = await get(`/jobs/${job.id}/policies`);
    fill(element, found.length ? found.map(lineage) : el("div", { class: "panel empty" }, none));
  };
  await load();
  return { element, on: follow(job.id, load, POLICIES_APART) };
}

async function history(page, view) {
  const element = el("ol", { class: "history panel" });
  const draw = (transitions) => fill(element, transitions.map(transition));
  draw(view.job.transitions);
  return { element, moved: async () => draw((await get(`/jobs/${view.job.id}`)).transitions) };
}

function transition({ at, wanted, reason, attempt, detail }) {
  const why = [
    reason,
    attempt ? el("span", { class: "muted" }, `, attempt ${attempt}`) : null,
    detail ? el("div", { class: "muted small" }, detail) : null,
  ];
  return el("li", {}, el("time", { class: "muted num" }, moment(at)), badge(wanted), el("span", {}, why));
}

async function log(page, { job }) {
  const element = el("pre", { class: "panel log", tabindex: 0, "aria-label": "Output" });
  const load = async () => {
    const { text } = await get(`/jobs/${job.id}/log`);
    const below = element.scrollTop + element.clientHeight >= element.scrollHeight - 8;
    setText(element, text || "It has printed nothing yet.");
    if (below) element.scrollTop = element.scrollHeight;
  };
  await load();
  requestAnimationFrame(() => (element.scrollTop = element.scrollHeight));
  return { element, on: follow(job.id, load, LOG_APART) };
}

async function config(page, { job }) {
  const row = ([key, value]) =>
    el("tr", {}, el("th", { scope: "row", class: "mono" }, key), el("td", { class: "mono" }, value));
  const table = el("table", { class: "config" }, el("tbody", {}, flat(job.config).map(row)));
  return { element: el("div", { class: "panel scroll" }, table) };
}

/** Load again as the job goes on, but not too often. */
function follow(job, load, apart) {
  let next = 0;
  return (name, data) => {
    const ours = (name === "metrics" && data.job === job) || (name === "job" && data.job.id === job);
    if (!ours || Date.now() < next) return;
    next = Date.now() + apart;
    load().catch(() => {}); // the stream says if the gateway is gone
  };
}

function flat(config, before = "") {
  return Object.entries(config).flatMap(([key, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? flat(value, `${before}${key}.`)
      : [[before + key, JSON.stringify(value)]],
  );
}
