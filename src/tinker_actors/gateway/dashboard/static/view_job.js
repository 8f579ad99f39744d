// One job: where it stands and how it came there, its curves, rollouts, policies, output and configuration.

import { get } from "./api.js";
import { Curves, legend } from "./curves.js";
import { badge, el, fill, setText } from "./dom.js";
import { moment, span } from "./format.js";
import { lineage } from "./lineage.js";
import { jobActions } from "./view_jobs.js";
import { rolloutsList } from "./view_rollouts.js";

const TABS = [
  ["curves", "Curves"],
  ["rollouts", "Rollouts"],
  ["policies", "Policies"],
  ["history", "History"],
  ["log", "Output"],
  ["config", "Configuration"],
];

/** One job, with the tab that is chosen. */
export async function jobView(page, id, tab, query) {
  let job = await get(`/jobs/${id}`);
  const state = el("span");
  const actions = el("div", { class: "row" });
  const detail = el("p", { class: "notice", hidden: true });
  const known = el("div", { class: "facts" });
  const bar = el("i");
  const body = el("div", { class: "stack", id: "tab" });
  const element = el(
    "div",
    { class: "stack" },
    el("p", { class: "small" }, el("a", { href: "#/jobs" }, "Jobs"), " / ", el("span", { class: "mono" }, job.id)),
    el("div", { class: "row apart" }, el("div", { class: "row" }, el("h1", {}, job.name), state), actions),
    detail,
    el("div", { class: "bar" }, bar),
    known,
    el(
      "nav",
      { class: "tabs", "aria-label": "Of this job" },
      TABS.map(([name, text]) =>
        el("a", { href: `#/job/${id}/${name}`, "aria-current": name === tab ? "page" : null }, text),
      ),
    ),
    body,
  );

  function draw() {
    fill(state, badge(job.state));
    fill(
      actions,
      el("a", { class: "button", href: `#/curves?run=${id}` }, "Compare"),
      ...jobActions(page, job, update),
    );
    detail.hidden = !job.detail;
    detail.classList.toggle("bad", job.state === "failed");
    setText(detail, job.detail);
    bar.style.width = `${100 * (job.progress?.share ?? 0)}%`;
    times();
  }

  function times() {
    const step = job.progress?.step
      ? `${job.progress.step}${job.progress.steps ? ` of ${job.progress.steps}` : ""}`
      : "–";
    const pairs = [
      ["Reason", job.reason],
      ["Step", step],
      ["Kind", job.kind],
      ["Attempt", String(job.attempt || "–")],
      ["Submitted", moment(job.submitted)],
      ["Started", moment(job.started)],
      ["Took", job.started ? span(Math.max(0, (job.ended ?? Date.now() / 1000) - job.started)) : "–"],
    ];
    if (job.tenant !== page.about.tenant) pairs.push(["Tenant", job.tenant]);
    if (job.priority) pairs.push(["Priority", String(job.priority)]);
    if (known.children.length === pairs.length)
      pairs.forEach(([, value], at) => setText(known.children[at].lastChild, value));
    else
      fill(
        known,
        pairs.map(([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, value))),
      );
  }

  async function update(given) {
    if (given.moved < job.moved) return; // an answer that was overtaken
    job = { ...job, ...given };
    draw();
    if (tab === "history") {
      job = await get(`/jobs/${id}`);
      inside.refresh();
    }
  }

  const inside = await tabs[tab in tabs ? tab : "curves"](page, () => job, query);
  fill(body, inside.element);
  draw();
  const ticking = setInterval(times, 1000);
  return {
    name: `job ${id} ${tab}`,
    title: job.name,
    element,
    wanted: { runs: [id] },
    on(name, data) {
      if (name === "job" && data.job.id === id) update(data.job);
      if (name === "hello") get(`/jobs/${id}`).then(update, () => {}); // what moved before the stream began
      if (name === "metrics" && data.job === id) {
        const last = data.records.findLast((record) => record.kind === "step");
        if (last && job.progress) {
          job.progress.step = last.step;
          if (job.progress.steps) job.progress.share = Math.min(1, last.step / job.progress.steps);
          draw();
        }
      }
      inside.on?.(name, data);
    },
    close() {
      clearInterval(ticking);
      inside.close?.();
    },
  };
}

const tabs = {
  async curves(page, job) {
    const run = { job: job().id, label: job().name, place: 0 };
    await page.load(run.job);
    const curves = new Curves(page.metrics);
    curves.show([run]);
    return { element: el("div", { class: "stack" }, legend([run]), curves.element), close: () => curves.close() };
  },
  rollouts: (page, job, query) => rolloutsList(page, job().id, query),
  async policies(page, job) {
    const element = el("div", { class: "stack" });
    const load = async () => {
      const found = await get(`/jobs/${job().id}/policies`);
      fill(
        element,
        found.length
          ? found.map(lineage)
          : el(
              "div",
              { class: "panel empty" },
              el("strong", {}, "No snapshots yet"),
              "A run publishes its first one before training begins.",
            ),
      );
    };
    await load();
    return { element, on: follow(job, load, 5000) };
  },
  async history(page, job) {
    const element = el("ol", { class: "history panel" });
    const refresh = () =>
      fill(
        element,
        job().transitions.map((line) =>
          el(
            "li",
            {},
            el("time", { class: "muted num" }, moment(line.at)),
            badge(line.wanted),
            el(
              "span",
              {},
              line.reason,
              line.attempt ? el("span", { class: "muted" }, `, attempt ${line.attempt}`) : null,
              line.detail ? el("div", { class: "muted small" }, line.detail) : null,
            ),
          ),
        ),
      );
    refresh();
    return { element, refresh };
  },
  async log(page, job) {
    const text = el("pre", { class: "panel log", tabindex: 0, "aria-label": "Output" });
    const load = async () => {
      const found = (await get(`/jobs/${job().id}/log`)).text;
      const below = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
      setText(text, found || "It has printed nothing yet.");
      if (below) text.scrollTop = text.scrollHeight;
    };
    await load();
    requestAnimationFrame(() => (text.scrollTop = text.scrollHeight));
    return { element: text, on: follow(job, load, 2000) };
  },
  async config(page, job) {
    const entries = flat(job().config);
    return {
      element: el(
        "div",
        { class: "panel scroll" },
        el(
          "table",
          { class: "config" },
          el(
            "tbody",
            {},
            entries.map(([key, value]) =>
              el("tr", {}, el("th", { scope: "row", class: "mono" }, key), el("td", { class: "mono" }, value)),
            ),
          ),
        ),
      ),
    };
  },
};

/** Load again as the job goes on, but not too often. */
function follow(job, load, apart) {
  let next = 0;
  return (name, data) => {
    if ((name !== "metrics" && name !== "job") || (data.job.id ?? data.job) !== job().id || Date.now() < next) return;
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
