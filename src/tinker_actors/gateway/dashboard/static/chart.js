// One chart of lines over steps or time, drawn on a canvas; hovering or the arrow keys read its values.

import { el, facts, showTip } from "./dom.js";
import { ROUNDING, number, span } from "./format.js";
import { nearest, smooth } from "./metrics.js";

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 4], [12, 4], [1, 4], [6, 2, 2, 2]];
const LEFT = 52;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 24;

/** A line of a chart: `{label, place, x, y, marks}`, `place` choosing its colour and dashes, `marks` for few points. */
export class Chart {
  /** `onHover(x | null)` is told where the reader looks, so that other charts can show the same place. */
  constructor(title, onHover = () => {}) {
    this.title = title;
    this.lines = [];
    this.view = { log: false, weight: 0, time: false };
    this.onHover = onHover;
    this.at = null;
    this.canvas = el("canvas", {
      tabindex: 0,
      role: "img",
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.leave(),
      onblur: () => this.leave(),
      onkeydown: (event) => this.key(event),
    });
    this.element = el("div", { class: "chart" }, this.canvas);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** Show these lines. */
  show(lines, view) {
    this.lines = lines.filter((line) => line.x.length);
    this.view = view;
    this.draw();
  }

  /** Mark a place that is looked at in another chart. */
  mark(x) {
    if (this.at === x) return;
    this.at = x;
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    this.ink = (name) => style.getPropertyValue(name).trim();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.canvas.setAttribute("aria-label", this.summary());
    this.drawn = this.lines.map((line) => ({ ...line, shown: line.marks ? line.y : smooth(line.y, this.view.weight) }));
    this.scale(width, height);
    this.axes(pen, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT - 5, TOP - 5, width - LEFT - RIGHT + 10, height - TOP - BOTTOM + 10);
    pen.clip(); // what was measured may lie beyond what is smoothed
    for (const line of this.drawn) this.line(pen, line);
    pen.restore();
    if (this.at !== null && this.lines.length) this.cross(pen, height);
  }

  scale(width, height) {
    const log = this.view.log;
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of this.drawn) {
      x0 = Math.min(x0, line.x[0]);
      x1 = Math.max(x1, line.x.at(-1));
      for (const value of line.shown) {
        if (this.hides(value)) continue;
        if (value < y0) y0 = value;
        if (value > y1) y1 = value;
      }
    }
    if (x0 === Infinity) [x0, x1] = [0, 1];
    if (x1 === x0) x1 = x0 + 1;
    if (y0 === Infinity) [y0, y1] = log ? [0.1, 1] : [0, 1];
    if (log) {
      y0 = Math.log10(y0);
      y1 = Math.log10(y1);
    }
    const size = Math.max(Math.abs(y0), Math.abs(y1));
    const level = size < ROUNDING ? 0.5 : y1 - y0 > size * 1e-9 ? 0 : size * 0.1; // but for rounding
    const margin = level || (y1 - y0) * 0.06;
    const floor = !log && y0 >= 0 ? Math.max(0, y0 - margin) : y0 - margin; // what can't be negative isn't drawn so
    this.bounds = { x0, x1, y0: floor, y1: y1 + margin };
    this.sx = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    this.sy = (y) =>
      TOP +
      (1 - ((log ? Math.log10(y) : y) - this.bounds.y0) / (this.bounds.y1 - this.bounds.y0)) * (height - TOP - BOTTOM);
    this.unx = (place) => x0 + ((place - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
  }

  /** Whether a value is none that the scale has. */
  hides(value) {
    return this.view.log && value < ROUNDING;
  }

  axes(pen, width, height) {
    const { x0, x1, y0, y1 } = this.bounds;
    pen.font = `11px ${this.ink("--sans")}`;
    pen.lineWidth = 1;
    pen.setLineDash([]);
    pen.strokeStyle = this.ink("--line");
    pen.fillStyle = this.ink("--muted");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [value, text] of this.view.log ? decades(y0, y1) : ticks(y0, y1, Math.max(2, Math.floor(height / 32)))) {
      const y = Math.round(this.sy(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(width - RIGHT, y);
      pen.stroke();
      pen.fillText(text, LEFT - 7, y);
    }
    pen.textBaseline = "top";
    const across = this.view.time
      ? times(x0, x1, width / 110)
      : ticks(x0, x1, Math.max(2, Math.floor(width / 52)), true);
    for (const [value, text] of across) {
      const x = this.sx(value);
      pen.textAlign = x < LEFT + 12 ? "left" : x > width - RIGHT - 14 ? "right" : "center";
      pen.fillText(text, x, height - BOTTOM + 7);
    }
  }

  line(pen, line) {
    pen.strokeStyle = pen.fillStyle = this.ink(`--run-${line.place % 8}`);
    pen.lineJoin = "round";
    if (this.view.weight && !line.marks) {
      pen.globalAlpha = 0.22;
      pen.lineWidth = 1;
      this.trace(pen, line.x, line.y);
      pen.globalAlpha = 1;
    }
    pen.lineWidth = line.marks ? 1.2 : 1.8;
    pen.setLineDash(line.marks ? [2, 3] : DASHES[line.place % 8]);
    this.trace(pen, line.x, line.shown);
    pen.setLineDash([]);
    if (line.marks || line.x.length === 1) {
      for (let i = 0; i < line.x.length; i++) {
        if (this.hides(line.shown[i])) continue;
        const [x, y] = [this.sx(line.x[i]), this.sy(line.shown[i])];
        pen.beginPath();
        pen.moveTo(x, y - 4);
        pen.lineTo(x + 4, y);
        pen.lineTo(x, y + 4);
        pen.lineTo(x - 4, y);
        pen.fill();
      }
    }
  }

  trace(pen, xs, ys) {
    pen.beginPath();
    let open = false;
    for (let i = 0; i < xs.length; i++) {
      if (this.hides(ys[i])) {
        open = false;
        continue;
      }
      if (open) pen.lineTo(this.sx(xs[i]), this.sy(ys[i]));
      else pen.moveTo(this.sx(xs[i]), this.sy(ys[i]));
      open = true;
    }
    pen.stroke();
  }

  cross(pen, height) {
    const x = Math.round(this.sx(this.at)) + 0.5;
    pen.strokeStyle = this.ink("--strong-line");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, TOP);
    pen.lineTo(x, height - BOTTOM);
    pen.stroke();
    for (const line of this.drawn) {
      const i = nearest(line.x, this.at);
      if (this.hides(line.shown[i])) continue;
      pen.fillStyle = this.ink(`--run-${line.place % 8}`);
      pen.beginPath();
      pen.arc(this.sx(line.x[i]), this.sy(line.shown[i]), 3.5, 0, 7);
      pen.fill();
    }
  }

  point(event) {
    if (!this.lines.length) return;
    const place = event.clientX - this.canvas.getBoundingClientRect().left;
    this.look(this.unx(place));
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this.lines.length) return;
    event.preventDefault();
    const column = this.lines[0].x;
    const now = this.at === null ? column.length - 1 : nearest(column, this.at) + step;
    this.look(column[Math.min(Math.max(now, 0), column.length - 1)]);
  }

  /** Read the values at a place. */
  look(x) {
    const longest = this.lines.reduce((a, b) => (b.x.length > a.x.length ? b : a));
    this.at = longest.x[nearest(longest.x, x)];
    this.draw();
    this.onHover(this.at);
    const box = this.canvas.getBoundingClientRect();
    const left = box.left + this.sx(this.at);
    const where = this.view.time ? `after ${span(this.at)}` : `step ${this.at}`;
    const values = this.drawn.map((line) => {
      const i = nearest(line.x, this.at);
      const elsewhere = line.x[i] === this.at || this.view.time ? "" : ` (step ${line.x[i]})`;
      const smoothed = line.shown === line.y ? "" : `, smoothed ${number(line.shown[i])}`;
      return [
        [el("i", { class: `swatch run-${line.place % 8}` }), line.label + elsewhere],
        number(line.y[i]) + smoothed,
      ];
    });
    showTip(
      { left, width: 0, top: box.top + TOP, bottom: box.bottom },
      el("strong", {}, `${this.title}, ${where}`),
      facts(values),
    );
  }

  leave() {
    this.at = null;
    showTip(null);
    this.draw();
    this.onHover(null);
  }

  summary() {
    if (!this.lines.length) return `${this.title}: no values yet`;
    const last = this.lines.map(
      (line) =>
        `${line.label} ${number(line.y.at(-1))} at ${this.view.time ? span(line.x.at(-1)) : `step ${line.x.at(-1)}`}`,
    );
    return `${this.title}: ${last.join("; ")}. Arrow keys read the values.`;
  }
}

function ticks(low, high, most, whole = false) {
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  if (whole) step = Math.max(1, Math.round(step));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let i = 0; i <= 2 * most; i++) {
    const value = (first + i) * step || 0;
    if (value > high + step * 1e-9) break;
    const size = Math.max(Math.abs(low), Math.abs(high));
    const text =
      size >= 1e6 || size < 1e-3
        ? value === 0
          ? "0"
          : value.toExponential(1).replace("e+", "e")
        : digits
          ? value.toFixed(digits)
          : value.toLocaleString("en");
    found.push([value, text]);
  }
  return found;
}

function decades(low, high) {
  const found = [];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = Math.ceil(low); power <= high; power += every) found.push([10 ** power, number(10 ** power)]);
  if (found.length < 2)
    return [low + (high - low) * 0.1, (low + high) / 2, high - (high - low) * 0.1].map((at) => [
      10 ** at,
      number(10 ** at),
    ]);
  return found;
}

function times(low, high, most) {
  const step =
    [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400].find(
      (each) => each >= (high - low) / most,
    ) ?? 86400;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step)
    found.push([at, at ? span(at).replace(" min 0 s", " min").replace(" h 0 min", " h") : "0"]);
  return found;
}
