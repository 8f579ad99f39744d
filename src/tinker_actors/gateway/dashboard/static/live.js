// The stream of events: opened again whenever it is cut, and taken up where it ended.

import { request } from "./api.js";

const SILENCE = 25_000; // ms without a sign of life
const LONGEST = 10_000; // ms between two tries

/** Follows what a view wants to be told of. */
export class Live {
  /** `onEvent(name, data)`; `onLink("live" | "connecting" | "lost", seconds)`. */
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
      try {
        await this.read(abort);
      } catch (error) {
        if (round !== this.round) return;
        if (error.status !== undefined) this.problem = error.message;
      }
      clearTimeout(this.watchdog);
      if (round !== this.round) return;
      this.tries += 1;
      const pause = Math.min(LONGEST, 500 * 2 ** (this.tries - 1));
      this.onLink(this.tries > 1 ? "lost" : "connecting", Math.round(pause / 1000));
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, pause);
      });
      this.wake = null;
    }
  }

  async read(abort) {
    const alive = () => {
      clearTimeout(this.watchdog);
      this.watchdog = setTimeout(() => abort.abort(), SILENCE);
    };
    const query = {
      run: [...this.cursors.keys()],
      mesh: this.wanted.mesh ? "true" : null,
      health: this.wanted.health ? "true" : null,
      progress: this.wanted.progress ? "true" : null,
    };
    // an empty cursor must keep its place beside its run
    query.cursor = [...this.cursors.values()].map((cursor) => cursor || "0");
    const response = await request("/live", { signal: abort.signal, query });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      alive();
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        this.take(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
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
