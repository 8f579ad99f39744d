// A job as a row of a table, and the buttons that end, resume or delete it.

import { post, remove } from "./api.js";
import { badge, confirmed, el, fill, setText } from "./dom.js";
import { moment, number, span } from "./format.js";

/** How long a job has run, or ran. */
export const took = (job) => (job.started ? span(Math.max(0, (job.ended ?? Date.now() / 1000) - job.started)) : "–");

/** A row that is kept up to date: its `element`, and what it last `shown`. */
export class JobRow {
  /** `gone(id)` is called once the job is deleted. */
  constructor(page, job, gone) {
    this.page = page;
    this.gone = gone;
    this.state = el("td", { class: "cell-state" });
    this.reason = el("div", { class: "muted small" });
    this.bar = el("i");
    this.steps = el("span", { class: "small muted num" });
    this.latest = el("td", { class: "num", "data-label": "Latest" });
    this.took = el("td", { class: "num", "data-label": "Took" });
    this.actions = el("td", { class: "cell-actions" });
    const tenant = job.tenant === page.about.tenant ? null : el("span", { class: "muted small" }, ` ${job.tenant}`);
    const name = el("a", { href: `#/job/${job.id}` }, job.name);
    const when = new Date(job.submitted * 1000).toString();
    this.element = el(
      "tr",
      { "data-job": job.id },
      this.state,
      el("td", { class: "cell-name" }, name, tenant, this.reason),
      el("td", { "data-label": "Kind" }, job.kind),
      el("td", { class: "cell-progress" }, el("div", { class: "bar" }, this.bar), this.steps),
      this.latest,
      el("td", { "data-label": "Submitted", title: when }, moment(job.submitted)),
      this.took,
      this.actions,
    );
    this.update(job);
  }

  update(job) {
    if (this.shown && job.moved < this.shown.moved) return; // an answer that was overtaken
    if (this.shown?.state !== job.state) {
      fill(this.state, badge(job.state));
      fill(
        this.actions,
        jobActions(
          this.page,
          job,
          (changed) => this.update(changed),
          () => this.gone(job.id),
        ),
      );
    }
    this.shown = job;
    setText(this.reason, job.detail || job.reason);
    this.reason.title = job.detail;
    const { share, step, steps, headline } = job.progress ?? {};
    this.bar.style.width = `${100 * (share ?? 0)}%`;
    setText(this.steps, step ? `${step}${steps ? ` / ${steps}` : ""}` : "–");
    setText(this.latest, headline ? `${headline.metric} ${number(headline.value)}` : "–");
    this.tick();
  }

  tick() {
    setText(this.took, took(this.shown));
  }
}

const CANCEL = {
  verb: "Cancel",
  path: "cancel",
  text: "Its process is told to end. What it has saved stays, and it can be resumed from there.",
};
const RESUME = { verb: "Resume", path: "resume", text: "It is queued again and goes on from its last checkpoint." };

const DELETE = {
  verb: "Delete",
  text: "Its output, its numbers and what it saved are no more, and it can't be resumed. Its checkpoints stay.",
};

/** The buttons that end, resume or delete a job, if the caller may; `changed` is given the job afterwards, `gone` nothing. */
export function jobActions(page, job, changed, gone) {
  if (!page.about.may_end_jobs) return [];
  const moves = [job.can_cancel && CANCEL, job.can_resume && RESUME].filter(Boolean);
  const buttons = moves.map((move) =>
    button(page, job, move, async () => changed(await post(`/jobs/${job.id}/${move.path}`))),
  );
  const erase = async () => {
    await remove(`/jobs/${job.id}`);
    gone();
  };
  return job.can_delete ? [...buttons, button(page, job, DELETE, erase)] : buttons;
}

function button(page, job, { verb, text }, change) {
  const act = async () => {
    if (!(await confirmed(`${verb} ${job.name}?`, text, `${verb} the job`))) return;
    try {
      await change();
    } catch (error) {
      page.toast(error.message, true);
    }
  };
  return el("button", { type: "button", "aria-label": `${verb} ${job.name}`, onclick: act }, verb);
}
