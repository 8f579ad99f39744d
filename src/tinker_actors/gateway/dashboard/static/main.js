// The page: which view is shown, who asks, and the one stream that keeps it up to date.

import { Lost, Refused, forgetKey, get, hasKey, keyDialog } from "./api.js";
import { el, fill, icon, setText, showTip, toast } from "./dom.js";
import { Live } from "./live.js";
import { Metrics } from "./metrics.js";
import { compareView } from "./view_compare.js";
import { episodeView } from "./view_episode.js";
import { healthView } from "./view_health.js";
import { jobView } from "./view_job.js";
import { jobsView } from "./view_jobs.js";
import { meshView } from "./view_mesh.js";
import { policiesView } from "./view_policies.js";

const THEME = "tinker-actors-theme";
const SECTIONS = [
  ["jobs", "Jobs"],
  ["curves", "Curves"],
  ["policies", "Policies"],
  ["mesh", "Mesh"],
  ["health", "Health"],
];

const main = document.getElementById("main");
const page = {
  metrics: new Metrics(),
  about: null,
  toast,
  /** Be told of these runs, of the meshes, of the gateway's health. */
  follow: (wanted) =>
    live.follow({ ...wanted, runs: new Map((wanted.runs ?? []).map((job) => [job, page.metrics.run(job).cursor])) }),
  /** Read what a run measured since it was last read. */
  load: async (job) =>
    page.metrics.take(job, await get(`/jobs/${job}/metrics`, { query: { cursor: page.metrics.run(job).cursor } })),
};
let view = null;
let round = 0;
let linked = "connecting";

const live = new Live(
  (name, data) => {
    if (name === "metrics") page.metrics.take(data.job, data);
    if (name === "hello" && linked === "lost") show(); // what happened meanwhile
    view?.on?.(name, data);
  },
  (state, seconds, why) => {
    const link = document.getElementById("link");
    const lost = `${why ? "Refused" : "No answer"}, next try in ${seconds} s`;
    link.dataset.state = state;
    link.title = why ?? "";
    setText(link, { live: "Live", connecting: "Connecting", lost }[state]);
    if (state !== "live") linked = state;
    else queueMicrotask(() => (linked = state));
  },
);

// #/jobs, #/job/ID, #/job/ID/rollouts, #/job/ID/rollouts/EPISODE?order=best
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent);
  return { parts, query: new URLSearchParams(query) };
}

function chosen({ parts, query }) {
  const [section, id, tab, item] = parts;
  if (section === "job" && id && tab === "rollouts" && item) return ["jobs", () => episodeView(page, id, item, query)];
  if (section === "job" && id) return ["jobs", () => jobView(page, id, tab ?? "curves", query)];
  if (section === "curves") return ["curves", () => compareView(page, query)];
  if (section === "policies") return ["policies", () => policiesView(page, query)];
  if (section === "mesh") return ["mesh", () => meshView(page)];
  if (section === "health") return ["health", () => healthView(page)];
  return ["jobs", () => jobsView(page, query)];
}

async function show() {
  const mine = ++round;
  const [section, open] = chosen(route());
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.section === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  showTip(null);
  try {
    page.about ??= await get("/about");
    const next = await open();
    if (mine !== round) return next.close?.();
    const here = view?.name === next.name;
    view?.close?.();
    view = next;
    document.title = `${next.title} · tinker_actors`;
    fill(main, next.element);
    if (!here) {
      scrollTo(0, 0);
      if (document.activeElement === document.body) main.focus({ preventScroll: true });
    }
    page.follow(next.wanted ?? {});
  } catch (error) {
    if (mine !== round) return;
    failed(error);
  }
  who();
}

function failed(error) {
  const lost = error instanceof Lost;
  if (!lost && !(error instanceof Refused)) console.error(error);
  if (lost && view) {
    live.restart(); // what is shown stays; the stream says when the gateway is back
    return;
  }
  view?.close?.();
  view = null;
  fill(
    main,
    el(
      "div",
      { class: "empty" },
      el(
        "strong",
        {},
        lost ? "The gateway does not answer" : error.status === 404 ? "Nothing is here" : "This can't be shown",
      ),
      error.message,
    ),
  );
  if (lost) setTimeout(show, 2000);
  else page.follow({});
}

function who() {
  const button = document.getElementById("key");
  button.hidden = !hasKey();
  setText(button, page.about ? `${page.about.tenant}: forget key` : "Forget key");
}

document.getElementById("key").addEventListener("click", () => {
  forgetKey();
  page.about = null;
  location.reload();
});

keyDialog.open = (detail) =>
  new Promise((resolve) => {
    const input = el("input", {
      type: "password",
      id: "key-input",
      autocomplete: "off",
      spellcheck: "false",
      placeholder: "tml-…",
      required: true,
    });
    const dialog = el(
      "dialog",
      { "aria-labelledby": "key-title" },
      el(
        "form",
        { method: "dialog" },
        el("h2", { id: "key-title" }, "This gateway needs an API key"),
        el(
          "p",
          { class: "muted" },
          "It is kept in this tab until the tab is closed. Whoever runs the gateway makes one with ",
          el("code", {}, "tinker-actors keys add"),
          ".",
        ),
        detail ? el("p", { class: "notice bad", role: "alert" }, detail) : null,
        el("label", { for: "key-input" }, "API key"),
        input,
        el("div", { class: "row" }, el("button", { class: "primary" }, "Continue")),
      ),
    );
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(input.value.trim());
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });

function theme(choice) {
  const dark = choice === "dark" || (choice === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  fill(button, icon(choice));
  const label = { system: "Colours: as the system", light: "Colours: light", dark: "Colours: dark" }[choice];
  button.setAttribute("aria-label", label);
  button.title = label;
}

const colours = () => localStorage.getItem(THEME) ?? "system";
document.getElementById("theme").addEventListener("click", () => {
  const order = ["system", "light", "dark"];
  localStorage.setItem(THEME, order[(order.indexOf(colours()) + 1) % 3]);
  theme(colours());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(colours()));

theme(colours());
fill(
  document.getElementById("nav"),
  SECTIONS.map(([name, text]) => el("a", { href: `#/${name}`, "data-section": name }, text)),
);
addEventListener("hashchange", show);
addEventListener("scroll", () => showTip(null), { passive: true });
show();
