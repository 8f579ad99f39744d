// One job: where it stands and how it came there; its tabs are in job_tabs.js.

import { get } from "./api.js";
import { badge, el, fill, setText } from "./dom.js";
import { moment } from "./format.js";
import { jobActions, took } from "./job_row.js";
import { TABS, openTab } from "./job_tabs.js";

/** One job, with the tab that is chosen. */
export async function jobView(page, id, tab, query) {
  const view = new JobView(page, await get(`/jobs/${id}`), tab);
  await view.open(query);
  return view;
}

class JobView {
  constructor(page, job, tab) {
    this.page = page;
    this.job = job;
    this.tab = tab;
    this.name = `job ${job.id} ${tab}`;
    this.title = job.name;
    this.wanted = { runs: [job.id] };
    this.state = el("span");
    this.actions = el("div", { class: "row" });
    this.detail = el("p", { class: "notice", hidden: true });
    this.bar = el("i");
    this.known = el("div", { class: "facts" });
    this.body = el("div", { class: "stack" });
    const way = [el("a", { href: "#/jobs" }, "Jobs"), " / ", el("span", { class: "mono" }, job.id)];
    const title = el("div", { class: "row" }, el("h1", {}, job.name), this.state);
    this.element = el(
      "div",
      { class: "stack" },
      el("p", { class: "small" }, way),
      el("div", { class: "row apart" }, title, this.actions),
      this.detail,
      el("div", { class: "bar" }, this.bar),
      this.known,
      this.tabs(),
      this.body,
    );
  }

  async open(query) {
    this.inside = await openTab(this.tab, this.page, this, query);
    fill(this.body, this.inside.element);
    this.draw();
    this.ticking = setInterval(() => this.times(), 1000);
  }

  close() {
    clearInterval(this.ticking);
    this.inside.close?.();
  }

  tabs() {
    const link = ([name, text]) => {
      const current = name === this.tab ? "page" : null;
      return el("a", { href: `#/job/${this.job.id}/${name}`, "aria-current": current }, text);
    };
    const nav = el("nav", { class: "tabs", "aria-label": "Of this job" }, TABS.map(link));
    const chosen = () => nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
    requestAnimationFrame(chosen); // in a narrow window it may lie beyond the edge
    return nav;
  }

  draw() {
    const { id, state, detail } = this.job;
    if (this.drawn !== state) {
      this.drawn = state; // what has the focus keeps it
      const compare = el("a", { class: "button", href: `#/curves?run=${id}` }, "Compare");
      fill(this.state, badge(state));
      fill(
        this.actions,
        compare,
        jobActions(
          this.page,
          this.job,
          (changed) => this.update(changed),
          () => this.gone(),
        ),
      );
    }
    this.detail.hidden = !detail;
    this.detail.classList.toggle("bad", state === "failed");
    setText(this.detail, detail);
    this.bar.style.width = `${100 * (this.job.progress?.share ?? 0)}%`;
    this.times();
  }

  times() {
    const { job } = this;
    const { step, steps } = job.progress ?? {};
    const pairs = [
      ["Reason", job.reason],
      ["Step", step ? `${step}${steps ? ` of ${steps}` : ""}` : "–"],
      ["Kind", job.kind],
      ["Attempt", String(job.attempt || "–")],
      ["Submitted", moment(job.submitted)],
      ["Started", moment(job.started)],
      ["Took", took(job)],
    ];
    if (job.tenant !== this.page.about.tenant) pairs.push(["Tenant", job.tenant]);
    if (job.priority) pairs.push(["Priority", String(job.priority)]);
    if (this.known.children.length === pairs.length) {
      pairs.forEach(([, value], at) => setText(this.known.children[at].lastChild, value));
      return;
    }
    fill(
      this.known,
      pairs.map(([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, value))),
    );
  }

  async update(job) {
    if (job.moved < this.job.moved) return; // an answer that was overtaken
    this.job = { ...this.job, ...job };
    this.draw();
    await this.inside.moved?.();
  }

  /** It was deleted. */
  gone() {
    location.hash = "#/jobs";
  }

  on(name, data) {
    const { id } = this.job;
    if (name === "gone" && data.id === id) this.gone();
    const lost = () => {}; // the stream says if the gateway is gone
    if (name === "job" && data.job.id === id) this.update(data.job).catch(lost);
    if (name === "hello") get(`/jobs/${id}`).then((job) => this.update(job), lost); // what moved before it began
    if (name === "metrics" && data.job === id) this.measured(data.records);
    this.inside.on?.(name, data);
  }

  measured(records) {
    const last = records.findLast((record) => record.kind === "step");
    const { progress, state } = this.job;
    if (!last || !progress) return;
    progress.step = last.step;
    const shares = [last.step / progress.steps, last.epoch / progress.epochs].filter(Number.isFinite);
    // one that succeeded is done, after however few of its steps
    if (shares.length && state !== "succeeded") progress.share = Math.min(1, Math.max(...shares));
    this.draw();
  }
}
