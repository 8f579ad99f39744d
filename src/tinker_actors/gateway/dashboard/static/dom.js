// Building elements. Text only ever becomes text: nothing here or anywhere else in the page parses markup.

/** An element: properties that begin with "on" are listeners, the others attributes; null and false are left out. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Change a text only if it differs: what is selected or read aloud stays as it is. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Put children into the place of those that are there. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}

/** The head of a table: `[text, class]` for each column. */
export function tableHead(columns) {
  const cells = columns.map(([text, name]) => el("th", { class: name ?? null, scope: "col" }, text));
  return el("thead", {}, el("tr", {}, cells));
}

/** The address of a view, with what is chosen in it; what is empty is left out. */
export function addressOf(path, chosen = {}) {
  const pairs = Object.entries(chosen).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const query = new URLSearchParams(pairs.filter(([, value]) => value));
  return `#${path}${query.size ? `?${query}` : ""}`;
}

const PATHS = {
  queued: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11ZM8 5v3.2l2 1.3",
  starting:
    "M8 2.5v2.6M8 10.9v2.6M2.5 8h2.6M10.9 8h2.6M4.1 4.1l1.8 1.8M10.1 10.1l1.8 1.8M11.9 4.1l-1.8 1.8M5.9 10.1l-1.8 1.8",
  running: "M5 3.5v9l7.5-4.5L5 3.5Z",
  cancelling: "M4.5 4.5h7v7h-7z",
  succeeded: "M3.2 8.4l3.2 3.2 6.4-7",
  failed: "M4 4l8 8M12 4l-8 8",
  cancelled: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11ZM4.2 11.8l7.6-7.6",
  warn: "M8 2.8 14 13H2L8 2.8ZM8 6.8v2.8M8 11.3v.2",
  light:
    "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6ZM8 1.2v1.6M8 13.2v1.6M1.2 8h1.6M13.2 8h1.6M3.2 3.2l1.1 1.1M11.7 11.7l1.1 1.1M12.8 3.2l-1.1 1.1M4.3 11.7l-1.1 1.1",
  dark: "M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6Z",
  system: "M2.5 3.5h11v7.5h-11zM6 13.5h4",
};

/** A small picture of a state or a tool. */
export function icon(name) {
  return svg(
    "svg",
    {
      viewBox: "0 0 16 16",
      "aria-hidden": "true",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 1.8,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
    },
    svg("path", { d: PATHS[name], fill: name === "running" || name === "cancelling" ? "currentColor" : null }),
  );
}

const TONES = {
  starting: "active",
  running: "active",
  succeeded: "good",
  failed: "bad",
  cancelling: "warn",
  up: "good",
  silent: "warn",
  down: "bad",
};
const SIGNS = {
  up: "succeeded",
  silent: "warn",
  down: "failed",
  unknown: "warn",
  restarting: "starting",
  draining: "cancelling",
};

/** A state: its sign, its name and its colour. */
export function badge(state) {
  return el(
    "span",
    { class: "state", "data-tone": TONES[state], "data-state": state },
    icon(PATHS[SIGNS[state] ?? state] ? (SIGNS[state] ?? state) : "queued"),
    state,
  );
}

/** Show text beside a rectangle of the window, or nothing any more. */
export function showTip(box, ...children) {
  const tip = document.getElementById("tip");
  if (!box) {
    tip.hidden = true;
    return;
  }
  fill(tip, ...children);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - width / 2), innerWidth - width - 8);
  const above = box.top - height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : Math.min(box.bottom + 8, innerHeight - height - 4)}px`;
}

/** A list of names and values. */
export function facts(pairs) {
  return el(
    "dl",
    {},
    pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
  );
}

/** A short message that goes by itself. */
export function toast(text, bad = false) {
  const message = el("p", { class: bad ? "bad" : null }, text);
  document.getElementById("toasts").append(message);
  setTimeout(() => message.remove(), bad ? 9000 : 5000);
}

/** Ask before something is done; whether it is to be. */
export function confirmed(title, text, action) {
  return new Promise((resolve) => {
    const dialog = el(
      "dialog",
      { "aria-label": title },
      el(
        "form",
        { method: "dialog" },
        el("h2", {}, title),
        el("p", {}, text),
        el(
          "div",
          { class: "row" },
          el("button", { value: "no", autofocus: true }, "Leave it"),
          el("button", { value: "yes", class: "danger" }, action),
        ),
      ),
    );
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
