// Tokens: each a piece of text whose ground, line and tip say what it carries.

import { el, facts, showTip } from "./dom.js";
import { number, signed } from "./format.js";

const CHANCES = [0.9, 0.5, 0.2, 0.05];

/** The blocks of tokens of one page; they are coloured alike. */
export class Tokens {
  /** `look.colour` says what the colours show; `largest` is the largest advantage of the episode. */
  constructor(look, largest) {
    this.look = look;
    this.largest = largest;
    this.all = []; // {element, piece} of sampled ones
  }

  /** A block: `[text, ids, special]`, and for sampled ones `logprob` and `advantage`. */
  block(pieces, sampled, label) {
    const made = pieces.map((piece) => this.token(piece, sampled));
    const block = el(
      "div",
      {
        class: `tokens ${sampled ? "sampled" : "observed"}`,
        tabindex: 0,
        role: "group",
        "aria-label": `${label}. Arrow keys go from token to token.`,
        onpointerover: (event) => this.tip(event.target.closest(".token")),
        onpointerleave: () => showTip(null),
        onfocusout: () => this.unmark(),
        onkeydown: (event) => this.key(event, made),
      },
      made,
    );
    return block;
  }

  token(piece, sampled) {
    const [text, , special] = piece;
    const shown = text
      .replaceAll("\n", "↵\n")
      .replace(/[\u0000-\u0008\u000b-\u001f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)));
    const element = el("span", { class: `token${special ? " special" : ""}` }, shown || "∅");
    element.piece = piece;
    element.sampled = sampled;
    if (sampled) {
      const [, , , logprob, advantage] = piece;
      element.dataset.values = `${logprob === null ? "–" : signed(logprob)} | ${advantage === null ? "–" : signed(advantage)}`;
      this.all.push(element);
      this.colour(element);
    }
    return element;
  }

  recolour() {
    this.all.forEach((element) => this.colour(element));
  }

  colour(element) {
    const [, , , logprob, advantage] = element.piece;
    element.dataset.ground = groundOf(this.look.colour, logprob, advantage, this.largest);
  }

  tip(element) {
    if (!element) return;
    const [text, ids, special, logprob, advantage] = element.piece;
    const pairs = [
      [
        ids.length > 1 ? "token ids" : "token id",
        ids.length > 4 ? `${ids.slice(0, 4).join(" ")} … (${ids.length})` : ids.join(" "),
      ],
    ];
    if (special) pairs.push(["kind", "control"]);
    if (!element.sampled) pairs.push(["mask", "0, observed"]);
    else {
      pairs.push(["mask", advantage === null ? "0, not trained on" : "1, trained on"]);
      pairs.push(["advantage", advantage === null ? "–" : signed(advantage)]);
      pairs.push(["log-prob", logprob === null ? "–" : signed(logprob)]);
      if (logprob !== null) pairs.push(["probability", number(Math.exp(logprob))]);
    }
    showTip(
      element.getClientRects()[0],
      el("div", { class: "mono tip-text" }, JSON.stringify(text.slice(0, 80))),
      facts(pairs),
    );
  }

  key(event, made) {
    const now = made.indexOf(this.marked);
    const last = made.length - 1;
    const to = {
      ArrowLeft: now < 0 ? last : Math.max(0, now - 1),
      ArrowRight: Math.min(last, now + 1),
      Home: 0,
      End: last,
    }[event.key];
    if (event.key === "Escape") this.unmark();
    if (to === undefined || last < 0) return;
    event.preventDefault();
    const next = made[to];
    this.marked?.classList.remove("marked");
    this.marked = next;
    next.classList.add("marked");
    next.scrollIntoView({ block: "nearest" });
    this.tip(next);
  }

  unmark() {
    this.marked?.classList.remove("marked");
    this.marked = null;
    showTip(null);
  }
}

function groundOf(colour, logprob, advantage, largest) {
  if (colour === "mask") return advantage === null ? "untrained" : "trained";
  if (colour === "logprob") {
    if (logprob === null) return "untrained";
    const at = CHANCES.findIndex((least) => Math.exp(logprob) >= least);
    return `p${at < 0 ? CHANCES.length : at}`;
  }
  if (advantage === null) return "untrained";
  if (advantage === 0 || !largest) return "zero";
  return `${advantage > 0 ? "plus" : "minus"}${Math.min(3, Math.ceil((3 * Math.abs(advantage)) / largest))}`;
}

/** What the grounds mean. */
export function legendOf(colour, largest) {
  const entries = {
    advantage: largest
      ? [
          ["minus3", signed(-largest)],
          ["minus1", signed(-largest / 3)],
          ["zero", "0"],
          ["plus1", signed(largest / 3)],
          ["plus3", signed(largest)],
          ["untrained", "not trained on"],
        ]
      : [
          ["zero", "0"],
          ["untrained", "not trained on"],
        ],
    logprob: [
      ...CHANCES.map((least, at) => [`p${at}`, `p ≥ ${least}`]),
      [`p${CHANCES.length}`, `p < ${CHANCES.at(-1)}`],
    ],
    mask: [
      ["trained", "trained on (1)"],
      ["untrained", "sampled, not trained on (0)"],
    ],
  }[colour];
  return [
    ...entries.map(([ground, text]) => el("span", { class: "token key", "data-ground": ground }, text)),
    el("span", { class: "muted small" }, "plain: observed (0)"),
  ];
}
