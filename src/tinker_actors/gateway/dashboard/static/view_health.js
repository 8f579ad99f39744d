// The gateway's health: what its samplers and trainers do, and what it counts of its requests.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { el, fill, setText } from "./dom.js";
import { number, size } from "./format.js";

const KEPT = 300; // looks, two seconds apart

/** The gateway's health, for keys that may see every tenant's. */
export async function healthView(page) {
  const title = el("h1", {}, "Health");
  if (!page.about.sees_all) {
    return {
      name: "health",
      title: "Health",
      element: el(
        "div",
        { class: "stack" },
        title,
        el(
          "div",
          { class: "panel empty" },
          el("strong", {}, "This is for operators"),
          "The gateway's health is shown to keys with the scope admin.",
        ),
      ),
    };
  }
  const requests = requestsSection();
  const models = new Map();
  const body = el("div", { class: "stack" });
  const empty = el(
    "div",
    { class: "panel empty" },
    el("strong", {}, "No model is served"),
    "Name some in the configuration of tinker-actors serve.",
  );
  const draw = (health) => {
    requests.update(health.requests, health.at);
    for (const model of health.models) {
      if (!models.has(model.model)) {
        models.set(model.model, modelSection(model));
        body.append(models.get(model.model).element);
      }
      models.get(model.model).update(model, health.at);
    }
    empty.hidden = health.models.length > 0;
  };
  draw(await get("/health"));
  return {
    name: "health",
    title: "Health",
    wanted: { health: true },
    element: el("div", { class: "stack" }, title, requests.element, body, empty),
    on: (name, data) => name === "health" && draw(data),
  };
}

/** What came in at the door. */
function requestsSection() {
  const tiles = tileBoard();
  const rate = history("Requests per second", ["answered", "refused"]);
  const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);
  let before = null;

  function update(now, at) {
    const [answered, refused] = [sum(now.answered), sum(now.refused)];
    const per = (value, key) => (before && at > before.at ? Math.max(0, value - before[key]) / (at - before.at) : null);
    const [answeredRate, refusedRate] = [per(answered, "answered"), per(refused, "refused")];
    tiles.update([
      ["Requests per second", number(answeredRate)],
      ["Under way", number(now.in_flight)],
      ["Answers kept for clients", number(now.futures)],
      ["Answered", number(answered)],
      ["Refused", number(refused)],
      ["Client errors (4xx)", number(now.answered["4xx"] ?? 0)],
      ["Server errors (5xx)", number(now.answered["5xx"] ?? 0)],
    ]);
    if (answeredRate !== null) rate.add(at, { answered: answeredRate, refused: refusedRate });
    before = { answered, refused, at };
  }

  return {
    element: el(
      "section",
      { class: "stack" },
      el("h2", {}, "Requests"),
      el("div", { class: "panel body-pad" }, tiles.element),
      el("div", { class: "charts" }, rate.element),
    ),
    update,
  };
}

function modelSection(model) {
  const kv = el("i");
  const tiles = tileBoard();
  const tokens = history("Tokens per second", ["sampled"]);
  const queue = history("Samples", ["running", "waiting"]);
  const places = history("KV places", ["in use", "kept"]);
  let before = null;

  function update(now, at) {
    const passed = before ? at - before.at : 0;
    const per = (key) => (passed > 0 ? Math.max(0, now[key] - before.now[key]) / passed : null);
    const [rate, sampled] = [per("requests"), per("generated_tokens")];
    tiles.update([
      ["Requests per second", number(rate)],
      ["Tokens per second", number(sampled)],
      ["Samples running", number(now.running)],
      ["Samples waiting", number(now.waiting)],
      ["Answered", number(now.requests)],
      ["Failed", number(now.failed)],
      ["Refused", number(now.refused)],
      ["Policies in training", number(now.policies)],
      ["Adapters loaded", number(now.adapters_loaded)],
      ["KV memory", size(now.kv_bytes)],
    ]);
    const taken = now.kv_tokens + now.kv_cached;
    kv.style.width = `${now.kv_capacity ? (100 * taken) / now.kv_capacity : 0}%`;
    setText(
      share,
      `KV places: ${number(now.kv_tokens)} in use and ${number(now.kv_cached)} kept for later, of ${number(now.kv_capacity)}`,
    );
    if (sampled !== null) {
      tokens.add(at, { sampled });
      queue.add(at, { running: now.running, waiting: now.waiting });
      places.add(at, { "in use": now.kv_tokens, kept: now.kv_cached });
    }
    before = { now, at };
  }

  const share = el("p", { class: "muted small" });
  const element = el(
    "section",
    { class: "stack" },
    el(
      "h2",
      {},
      model.model,
      model.base_model === model.model ? null : el("span", { class: "muted small" }, `  ${model.base_model}`),
    ),
    el("div", { class: "panel body-pad" }, tiles.element, share, el("div", { class: "bar" }, kv)),
    el("div", { class: "charts" }, tokens.element, queue.element, places.element),
  );
  return { element, update };
}

/** Names with a number below each; the numbers change in place. */
function tileBoard() {
  const element = el("div", { class: "tiles" });
  return {
    element,
    update(values) {
      if (!element.children.length)
        fill(
          element,
          values.map(([name, value]) =>
            el("div", { class: "tile" }, el("span", { class: "muted small" }, name), el("b", {}, value)),
          ),
        );
      else values.forEach(([, value], i) => setText(element.children[i].lastChild, value));
    },
  };
}

function legend(names) {
  const keys = names.map((name, place) => el("span", {}, el("i", { class: `swatch run-${place}` }), name));
  return el("div", { class: "legend muted" }, keys);
}

/** A chart of what this page has seen so far. */
function history(title, names) {
  const chart = new Chart(title);
  const x = [];
  const columns = Object.fromEntries(names.map((name) => [name, []]));
  let start = null;
  return {
    element: el(
      "section",
      { class: "panel card" },
      el("div", { class: "row apart" }, el("h3", {}, title), names.length > 1 ? legend(names) : null),
      chart.element,
    ),
    add(at, values) {
      start ??= at;
      x.push(at - start);
      for (const name of names) columns[name].push(values[name]);
      if (x.length > KEPT) [x, ...Object.values(columns)].forEach((column) => column.shift());
      chart.show(
        names.map((label, place) => ({ label, place, x, y: columns[label] })),
        { log: false, weight: 0, time: true },
      );
    },
  };
}
