// Policies: those of the gateway's clients, and those of jobs, with what each snapshot grew from.

import { get } from "./api.js";
import { badge, el, fill } from "./dom.js";
import { lineage } from "./lineage.js";
import { moment } from "./format.js";

/** All policies that the caller may know of. */
export async function policiesView(page) {
  const clients = el("div", { class: "stack" });
  const jobs = el("div", { class: "stack" });
  const more = el("button", { type: "button", hidden: true, onclick: () => load() }, "Show older jobs");
  let before = null;

  async function load() {
    const found = await get("/jobs", { query: { before, limit: 20 } });
    before = found.jobs.at(-1)?.number ?? before;
    more.hidden = !found.more;
    const started = found.jobs.filter((job) => job.started);
    const first = jobs.children.length ? null : started.find((job) => job.progress?.headline);
    for (const job of started) jobs.append(ofJob(job, job === first));
  }

  function ofJob(job, open) {
    const body = el("div", { class: "stack body" });
    let known = false;
    const show = async () => {
      if (known) return;
      known = true;
      const found = await get(`/jobs/${job.id}/policies`);
      fill(body, found.length ? found.map(lineage) : el("p", { class: "muted" }, "Nothing is stored yet."));
    };
    return el(
      "details",
      {
        class: "panel",
        open,
        ontoggle: (event) => event.target.open && show().catch((error) => page.toast(error.message, true)),
      },
      el(
        "summary",
        {},
        el(
          "span",
          { class: "row" },
          el("a", { href: `#/job/${job.id}/policies` }, job.name),
          badge(job.state),
          el("span", { class: "muted small" }, moment(job.submitted)),
        ),
      ),
      body,
    );
  }

  const stored = await get("/policies");
  fill(
    clients,
    stored.policies.length
      ? stored.policies.map(lineage)
      : el(
          "div",
          { class: "panel empty" },
          el("strong", {}, "No client has trained a policy yet"),
          "What clients of the Tinker API train and store appears here.",
        ),
  );
  if (page.about.takes_jobs) await load();
  const element = el(
    "div",
    { class: "stack" },
    el("h1", {}, "Policies"),
    el("h2", {}, "Of clients"),
    clients,
    page.about.takes_jobs ? el("h2", {}, "Of jobs") : null,
    page.about.takes_jobs && !jobs.children.length
      ? el("div", { class: "panel empty" }, el("strong", {}, "No job has been started yet"))
      : jobs,
    more,
  );
  return { name: "policies", title: "Policies", element };
}
