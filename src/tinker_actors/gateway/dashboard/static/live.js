// The stream of events: opened again whenever it is cut, and taken up where it ended.

import { request } from "./api.js";

const SILENCE = 25_000; // ms without a sign of life
const LONGEST = 10_000; // ms between two tries

/** Follows what a view wants to be told of. */
export class Live {
  /** `onEvent(name, data)`; `onLink("live" | "connecting" | "lost", seconds, why)`. */
  constructor(onEvent, onLink) {
    this.onEvent = onEvent;
    this.onLink = onLink;
    this.wanted = { runs: new Map() };
    this.cursors = this.wanted.runs;
    this.tries = 0;
    this.round = 0;
    addEventListener("online", () => this.wake?.());
    document.addEventListener("visibilitychange", () => document.hidden || this.wake?.());
  }

  /** Follow these from now on: `{runs, mesh, health, progress}`, `runs` having for each job how far it was read. */
  follow(wanted) {
    this.wanted = wanted;
    this.cursors = wanted.runs;
    this.restart();
  }

  /** Leave the present stream and open another. */
  restart() {
    this.abort?.abort();
    this.wake?.();
    this.run(++this.round);
  }

  async run(round) {
    while (round === this.round) {
      const abort = (this.abort = new AbortController());
      let refused = "";
      try {
        await this.read(abort);
      } catch (error) {
        refused = error.status === undefined ? "" : error.message;
      }
      if (round !== this.round) return;
      this.tries += 1;
      const pause = Math.min(LONGEST, 500 * 2 ** (this.tries - 1));
      this.onLink(this.tries > 1 ? "lost" : "connecting", Math.round(pause / 1000), refused);
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, pause);
      });
      this.wake = null;
    }
  }

  /** Read one stream to its end; one that is silent for too long is given up. */
  async read(abort) {
    let watchdog;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(), SILENCE);
    };
    alive();
    try {
      const response = await request("/live", { signal: abort.signal, query: this.query() });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        alive();
        text += value;
        for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
          this.take(text.slice(0, end));
          text = text.slice(end + 2);
        }
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  query() {
    const flag = (wanted) => (wanted ? "true" : null);
    const { mesh, health, progress } = this.wanted;
    return {
      run: [...this.cursors.keys()],
      cursor: [...this.cursors.values()].map((cursor) => cursor || "0"), // an empty one would lose its place
      mesh: flag(mesh),
      health: flag(health),
      progress: flag(progress),
    };
  }

  take(block) {
    let name = "";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (!name) return;
    const told = JSON.parse(data);
    if (name === "hello") {
      this.tries = 0;
      this.onLink("live", 0);
    }
    if (name === "metrics" && this.cursors.has(told.job)) this.cursors.set(told.job, told.cursor);
    this.onEvent(name, told);
  }
}
