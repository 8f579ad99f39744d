// One episode: each seat's turns, token by token, with what every token carries.

import { get } from "./api.js";
import { addressOf, el, fill, setText } from "./dom.js";
import { number } from "./format.js";
import { Tokens, legendOf } from "./tokens.js";
import { seatLine, turnCard } from "./turn_card.js";

const LOOK = "tinker-actors-episode";
const AHEAD = "600px"; // further turns are fetched when the end is so near
const COLOURS = [
  ["advantage", "Advantage"],
  ["logprob", "Log-prob"],
  ["mask", "Mask"],
];

/** An episode of a job. */
export async function episodeView(page, job, id, query) {
  const view = new EpisodeView(page, job, id, query);
  await view.open();
  return view;
}

class EpisodeView {
  constructor(page, job, id, query) {
    this.page = page;
    this.job = job;
    this.id = id;
    this.at = Number(query.get("at") ?? 0); // which seat
    this.filters = Object.fromEntries([...query].filter(([name]) => name !== "at"));
    this.look = { colour: "advantage", values: false, ...JSON.parse(localStorage.getItem(LOOK) ?? "{}") };
    this.shown = 0;
    this.turns = el("div", { class: "turns" });
    this.legend = el("div", { class: "legend" });
    this.further = el("p", { class: "muted small", role: "status" });
    const near = (entries) => entries.some((entry) => entry.isIntersecting) && this.append();
    this.watcher = new IntersectionObserver(near, { rootMargin: AHEAD });
  }

  get name() {
    return `episode ${this.job}`;
  }

  get title() {
    return this.id;
  }

  close() {
    this.watcher.disconnect();
  }

  async open() {
    this.episode = await this.fetch(0);
    this.seat = this.episode.seats[this.at];
    this.tokens = new Tokens(this.look, this.episode.largest_advantage);
    this.add(this.episode.turns);
    const { error, no_tokens_because: why } = this.episode;
    this.element = el(
      "div",
      { class: "stack episode" },
      this.head(),
      this.facts(),
      error ? el("pre", { class: "notice bad" }, error) : null,
      why ? el("p", { class: "notice" }, `Texts in place of tokens: ${why}`) : null,
      this.seats(),
      this.seat ? seatLine(this.seat) : el("p", { class: "muted" }, "No seat ever came to act."),
      this.controls(),
      this.turns,
      this.further,
    );
    this.apply({});
  }

  fetch(start) {
    const query = { ...this.filters, at: this.at, start };
    return get(`/jobs/${this.job}/episodes/${encodeURIComponent(this.id)}`, { query });
  }

  address(id, at) {
    return addressOf(`/job/${this.job}/rollouts/${encodeURIComponent(id)}`, { ...this.filters, at });
  }

  head() {
    const { id, job, place, of, previous, next } = this.episode;
    const step = (to, text, sign) =>
      to
        ? el("a", { class: "button icon", href: this.address(to, this.at), "aria-label": text }, sign)
        : el("button", { type: "button", class: "icon", disabled: true, "aria-label": text }, sign);
    const rollouts = addressOf(`/job/${this.job}/rollouts`, this.filters);
    const way = [
      el("a", { href: "#/jobs" }, "Jobs"),
      " / ",
      el("a", { href: `#/job/${this.job}` }, job),
      " / ",
      el("a", { href: rollouts }, "Rollouts"),
    ];
    const where = el("span", { class: "muted small" }, place ? `${place} of ${of}` : "");
    const steps = [step(previous, "Previous episode", "‹"), step(next, "Next episode", "›")];
    return [
      el("p", { class: "small" }, way),
      el("div", { class: "row apart" }, el("h1", { class: "mono" }, id), el("div", { class: "row" }, where, steps)),
    ];
  }

  facts() {
    const { step, phase, environment, task, end, metrics } = this.episode;
    const measured = Object.entries(metrics ?? {}).map(([name, value]) => [name, number(value)]);
    const known = { Step: step, Phase: phase, Environment: environment, Task: task, End: end };
    const pairs = [...Object.entries(known), ...measured];
    const fact = ([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, String(value)));
    return el("div", { class: "facts" }, pairs.map(fact));
  }

  seats() {
    const { seats } = this.episode;
    if (seats.length < 2) return null;
    const link = (seat, at) => {
      const note = `${number(seat.reward)}${seat.trainable ? "" : " frozen"}`;
      const current = at === this.at ? "page" : null;
      const attributes = { href: this.address(this.id, at), "aria-current": current };
      return el("a", attributes, `${seat.seat} `, el("span", { class: "muted" }, note));
    };
    return el("nav", { class: "tabs", "aria-label": "Seats" }, seats.map(link));
  }

  controls() {
    const button = ([value, text]) =>
      el("button", { type: "button", class: "chip", value, onclick: () => this.apply({ colour: value }) }, text);
    this.colours = el("div", { class: "chips", role: "group", "aria-label": "Colours show" }, COLOURS.map(button));
    const values = {
      type: "checkbox",
      checked: this.look.values,
      onchange: (event) => this.apply({ values: event.target.checked }),
    };
    const numbers = el("label", { class: "field" }, el("input", values), el("span", {}, "Numbers"));
    return el("div", { class: "row apart sticky" }, el("div", { class: "row" }, this.colours, numbers), this.legend);
  }

  /** Change what the tokens show. */
  apply(change) {
    Object.assign(this.look, change);
    localStorage.setItem(LOOK, JSON.stringify(this.look));
    const { colour, values } = this.look;
    fill(this.legend, legendOf(colour, this.episode.largest_advantage));
    this.tokens.recolour();
    this.turns.classList.toggle("with-values", values);
    for (const button of this.colours.children) button.setAttribute("aria-pressed", String(button.value === colour));
  }

  add(turns) {
    this.turns.append(...turns.map((turn, i) => turnCard(turn, this.shown + i + 1, this.seat, this.tokens)));
    this.shown += turns.length;
    const left = (this.seat?.turns ?? 0) - this.shown;
    setText(this.further, left > 0 ? `${left} further turns follow` : "");
    this.watcher.disconnect(); // it tells only of changes: looked at anew, it says whether the end is still near
    if (left > 0) this.watcher.observe(this.further);
  }

  async append() {
    if (this.loading) return;
    this.loading = true;
    try {
      this.add((await this.fetch(this.shown)).turns);
    } catch (error) {
      this.page.toast(error.message, true);
    }
    this.loading = false;
  }
}
