// A policy's snapshots and checkpoints: what grew from what, as a picture and as a table.

import { el, facts, fill, showTip, svg } from "./dom.js";
import { moment, number, short, size, span } from "./format.js";

const APART = 34;
const ROWS = { snapshot: 30, checkpoint: 84 };
const FIRST = 20;

/** `{policy, stored, left_out, error}` as a section. */
export function lineage({ policy, stored, left_out: leftOut, error }) {
  const newest = [...stored].reverse();
  // what is the policy's own goes without its name
  const near = (handle) =>
    short(handle).startsWith(`${policy}/`) ? short(handle).slice(policy.length + 1) : short(handle);
  const latest = newest.find((entry) => entry.kind === "snapshot")?.handle;
  const body = el("tbody");
  const more = el(
    "button",
    { type: "button", class: "quiet", onclick: () => rows(newest.length) },
    `Show all ${newest.length}`,
  );

  function rows(most) {
    fill(
      body,
      newest.slice(0, most).map((entry) =>
        el(
          "tr",
          { "data-handle": entry.handle },
          el(
            "td",
            {},
            el("span", { class: `mark ${entry.kind}`, "aria-hidden": "true" }),
            near(entry.handle),
            " ",
            el("span", { class: "muted small" }, entry.kind),
          ),
          el("td", { class: "num", "data-label": "Step" }, number(entry.step)),
          el("td", { class: "num", "data-label": "Size" }, size(entry.size)),
          el("td", { "data-label": "Stored" }, moment(entry.created_at)),
          el("td", { "data-label": "Grew from" }, entry.parent ? near(entry.parent) : "the base model"),
          el(
            "td",
            {},
            el(
              "span",
              { class: "chips" },
              marks(entry, latest).map((text) => el("span", { class: "state" }, text)),
            ),
          ),
        ),
      ),
    );
    more.hidden = most >= newest.length;
  }

  rows(FIRST);
  return el(
    "section",
    { class: "panel lineage" },
    el(
      "div",
      { class: "head row apart" },
      el("h2", {}, policy),
      el(
        "span",
        { class: "muted small" },
        `${stored.length} stored${leftOut ? `, ${leftOut} older ones are not shown` : ""}`,
      ),
    ),
    error ? el("p", { class: "notice bad" }, error) : null,
    stored.length
      ? el(
          "div",
          {
            class: "scroll graph",
            tabindex: 0,
            role: "group",
            "aria-label": `What the snapshots of ${policy} grew from`,
          },
          graph(stored, latest),
        )
      : null,
    stored.length
      ? el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "stored" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                [["Handle"], ["Step", "num"], ["Size", "num"], ["Stored"], ["Grew from"], [""]].map(([text, cls]) =>
                  el("th", { scope: "col", class: cls ?? null }, text),
                ),
              ),
            ),
            body,
          ),
        )
      : el("p", { class: "empty" }, "Nothing of it is stored any more."),
    more,
  );
}

function marks(entry, latest) {
  const found = [];
  if (entry.handle === latest) found.push("latest");
  if (entry.served) found.push("served");
  if (entry.public) found.push("public");
  if (entry.pinned) found.push("pinned");
  if (entry.expires_at)
    found.push(
      entry.expires_at * 1000 < Date.now() ? "expired" : `expires in ${span(entry.expires_at - Date.now() / 1000)}`,
    );
  return found;
}

function graph(stored, latest) {
  const places = new Map(stored.map((entry, at) => [entry.handle, { x: 24 + at * APART, y: ROWS[entry.kind] }]));
  const lines = [];
  const nodes = [];
  for (const entry of stored) {
    const { x, y } = places.get(entry.handle);
    const from = places.get(entry.parent);
    if (from)
      lines.push(
        svg("path", {
          class: "edge",
          d: `M${from.x} ${from.y} C${(from.x + x) / 2} ${from.y} ${(from.x + x) / 2} ${y} ${x} ${y}`,
        }),
      );
    else if (entry.parent) lines.push(svg("path", { class: "edge gone", d: `M${x - APART / 2} ${y} L${x} ${y}` }));
    const tip = (event) =>
      showTip(
        event.target.getBoundingClientRect(),
        el("strong", { class: "mono" }, entry.handle),
        facts([
          ["step", number(entry.step)],
          ["size", size(entry.size)],
          ["stored", moment(entry.created_at)],
          ["grew from", entry.parent ? short(entry.parent) : "the base model"],
        ]),
      );
    const attributes = {
      class: `node ${entry.kind}${entry.handle === latest ? " latest" : ""}`,
      onpointerenter: tip,
      onpointerleave: () => showTip(null),
    };
    nodes.push(
      entry.kind === "snapshot"
        ? svg("circle", { ...attributes, cx: x, cy: y, r: 6.5 })
        : svg("rect", { ...attributes, x: x - 6, y: y - 6, width: 12, height: 12, rx: 2 }),
    );
    nodes.push(
      svg("text", { x, y: y + (entry.kind === "snapshot" ? -13 : 22), "text-anchor": "middle" }, String(entry.step)),
    );
  }
  const width = 48 + stored.length * APART;
  return svg(
    "svg",
    {
      width,
      height: 116,
      viewBox: `0 0 ${width} 116`,
      role: "img",
      "aria-label": `${stored.length} stored; the table below says what each grew from`,
    },
    lines,
    nodes,
  );
}
