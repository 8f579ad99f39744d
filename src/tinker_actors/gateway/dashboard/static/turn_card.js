// A seat and its turns as they are read.

import { el } from "./dom.js";
import { number, short, signed } from "./format.js";

/** What is said of a seat above its turns. */
export function seatLine(seat) {
  const parts = [
    `reward ${number(seat.reward)}`,
    seat.turns === 1 ? "1 turn" : `${number(seat.turns)} turns`,
    `${number(seat.prompt_tokens)} observed and ${number(seat.action_tokens)} sampled tokens`,
  ];
  if (seat.policy) parts.unshift(`played by ${seat.policy}`);
  if (seat.staleness !== null) parts.push(`staleness ${seat.staleness}`);
  if (seat.advantage)
    parts.push(
      seat.advantage[0] === seat.advantage[1]
        ? `advantage ${signed(seat.advantage[0])}`
        : `advantages ${signed(seat.advantage[0])} to ${signed(seat.advantage[1])}`,
    );
  if (!seat.trainable) parts.push("frozen: not trained on");
  return el("p", { class: "muted" }, el("strong", {}, seat.seat), `: ${parts.join(", ")}`);
}

/** A turn: what was observed and what was sampled, token by token. */
export function turnCard(turn, at, seat, tokens) {
  const notes = [`reward ${number(turn.reward)}`, turn.end.replaceAll("_", " ")];
  if (turn.snapshot)
    notes.push(
      `snapshot ${short(turn.snapshot)}${turn.snapshot_max === turn.snapshot ? "" : ` to ${short(turn.snapshot_max)}`}`,
      `temperature ${number(turn.temperature)}`,
    );
  notes.push(`${turn.observation_tokens} + ${turn.action_tokens} tokens`);
  if (turn.restarts) notes.push("begins a new datum");
  return el(
    "article",
    { class: "panel turn" },
    el("header", { class: "small" }, el("strong", {}, `Turn ${at}`), el("span", { class: "muted" }, notes.join(" · "))),
    el(
      "div",
      { class: "said" },
      el("span", { class: "who" }, "observed"),
      el(
        "div",
        {},
        images(turn),
        turn.observed ? tokens.block(turn.observed, false, `Observed in turn ${at}`) : messages(turn),
      ),
      el("span", { class: "who" }, seat.seat),
      el(
        "div",
        {},
        turn.sampled
          ? tokens.block(turn.sampled, true, `Sampled in turn ${at}`)
          : el("div", { class: "text" }, turn.text),
        turn.left_out ? el("p", { class: "muted small" }, "Its tokens are left out: the episode is too long.") : null,
      ),
    ),
  );
}

function messages(turn) {
  return turn.messages.map((message) =>
    el("div", { class: "text muted" }, el("b", {}, `${message.name ?? message.role}: `), message.content),
  );
}

function images(turn) {
  const found = turn.messages.flatMap((message) => message.images ?? []);
  if (!found.length) return null;
  return el(
    "div",
    { class: "row images" },
    found.map((image) =>
      image.png && /^[A-Za-z0-9+/=]+$/.test(image.png)
        ? el("img", {
            src: `data:image/png;base64,${image.png}`,
            alt: `An image of ${image.width} by ${image.height} pixels`,
            width: 128,
          })
        : el("span", { class: "muted small" }, `an image of ${image.width} × ${image.height}`),
    ),
  );
}
