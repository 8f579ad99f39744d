// The meshes: processes and actors as they are at this moment.

import { get } from "./api.js";
import { badge, el, fill, setText } from "./dom.js";
import { number, size, span } from "./format.js";

const MOST = 100; // actors of a mesh that are drawn

const COLUMNS = [
  ["Actor", (actor) => actor.name],
  ["Class", (actor) => actor.cls],
  ["Node", (actor) => actor.node],
  ["State", (actor) => actor.state],
  ["Mailbox", (actor) => actor.mailbox ?? -1, true],
  ["Messages/s", (actor) => actor.rate ?? -1, true],
  ["p50", (actor) => actor.p50 ?? -1, true],
  ["p99", (actor) => actor.p99 ?? -1, true],
  ["Handled", (actor) => actor.handled ?? -1, true],
  ["Restarts", (actor) => actor.restarts, true],
];

/** The gateway's mesh and those of running jobs. */
export async function meshView() {
  const sections = new Map();
  const body = el("div", { class: "stack" });
  const draw = (meshes) => {
    const names = new Set();
    for (const mesh of meshes) {
      const name = mesh.job?.id ?? "";
      names.add(name);
      if (!sections.has(name)) {
        sections.set(name, meshSection());
        body.append(sections.get(name).element);
      }
      sections.get(name).update(mesh);
    }
    for (const [name, section] of sections) {
      if (names.has(name)) continue;
      section.element.remove();
      sections.delete(name);
    }
    empty.hidden = meshes.length > 0;
  };
  const empty = el(
    "div",
    { class: "panel empty" },
    el("strong", {}, "Nothing of yours runs now"),
    "The processes and actors of running jobs appear here; the gateway's own are shown to keys with the scope admin.",
  );
  draw(await get("/mesh"));
  return {
    name: "mesh",
    title: "Mesh",
    wanted: { mesh: true },
    element: el("div", { class: "stack" }, el("h1", {}, "Mesh"), body, empty),
    on: (name, data) => name === "mesh" && draw(data),
  };
}

function meshSection() {
  const sort = { by: 5, down: true };
  const title = el("h2");
  const nodes = el("div", { class: "nodes" });
  const rows = el("tbody");
  const left = el("p", { class: "muted small", hidden: true });
  const heads = COLUMNS.map(([text, , numeric], at) =>
    el(
      "th",
      { scope: "col", class: numeric ? "num" : null },
      el(
        "button",
        {
          type: "button",
          onclick: () => {
            sort.down = sort.by === at ? !sort.down : Boolean(numeric);
            sort.by = at;
            update(shown);
          },
        },
        text,
      ),
    ),
  );
  const element = el(
    "section",
    { class: "stack mesh" },
    title,
    nodes,
    el("div", { class: "panel scroll" }, el("table", { class: "actors" }, el("thead", {}, el("tr", {}, heads)), rows)),
    left,
  );
  let shown;

  function update(mesh) {
    shown = mesh;
    fill(
      title,
      mesh.job ? el("a", { href: `#/job/${mesh.job.id}` }, mesh.job.name) : "The gateway",
      el(
        "span",
        { class: "muted small" },
        `  pid ${mesh.pid}, ${count(mesh.nodes.length, "process", "processes")}, ${count(mesh.actors.length, "actor", "actors")}`,
      ),
    );
    while (nodes.children.length > mesh.nodes.length) nodes.lastChild.remove();
    mesh.nodes.forEach((node, at) =>
      nodes.children[at]
        ? nodes.replaceChild(nodeCard(node, mesh.time), nodes.children[at])
        : nodes.append(nodeCard(node, mesh.time)),
    );
    heads.forEach((head, at) =>
      at === sort.by
        ? head.setAttribute("aria-sort", sort.down ? "descending" : "ascending")
        : head.removeAttribute("aria-sort"),
    );
    const key = COLUMNS[sort.by][1];
    const sorted = [...mesh.actors].sort(
      (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (sort.down ? -1 : 1),
    );
    const drawn = sorted.slice(0, MOST);
    while (rows.children.length > drawn.length) rows.lastChild.remove();
    drawn.forEach((actor, at) => {
      if (!rows.children[at]) rows.append(actorRow());
      fillRow(rows.children[at], actor);
    });
    left.hidden = sorted.length <= MOST;
    setText(left, `${sorted.length - MOST} further actors are not drawn; sort by another column to see others first.`);
  }

  return { element, update };
}

const count = (n, one, several) => `${number(n)} ${n === 1 ? one : several}`;

function nodeCard(node, now) {
  const lag = node.loop_lag;
  return el(
    "div",
    { class: "panel node" },
    el("div", { class: "row apart" }, el("strong", {}, `Node ${node.index}`), badge(node.state)),
    el(
      "dl",
      {},
      [
        ["process", `${node.pid ?? "–"}${node.host ? ` on ${node.host}` : ""}`],
        ["memory", size(node.rss)],
        ["loop late by", span(lag)],
        ["up for", node.up_since ? span(now - node.up_since) : "–"],
        ["started", node.incarnation > 1 ? `${node.incarnation} times` : "once"],
        ["dead letters", number(node.dead_letters)],
      ].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  );
}

function actorRow() {
  return el(
    "tr",
    {},
    COLUMNS.map(([text, , numeric]) => el("td", { class: numeric ? "num" : null, "data-label": text })),
  );
}

function fillRow(row, actor) {
  const texts = [
    actor.name,
    actor.cls,
    String(actor.node),
    null,
    actor.mailbox === null ? "–" : `${number(actor.mailbox)} / ${number(actor.mailbox_bound)}`,
    actor.rate === null ? "–" : number(Math.round(actor.rate * 10) / 10),
    span(actor.p50),
    span(actor.p99),
    number(actor.handled),
    number(actor.restarts),
  ];
  texts.forEach((text, at) => text !== null && setText(row.children[at], text));
  if (row.children[3].dataset.state !== actor.state) {
    row.children[3].dataset.state = actor.state;
    fill(row.children[3], badge(actor.state));
  }
}
