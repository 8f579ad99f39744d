// One episode: each seat's turns, token by token, with what every token carries.

import { get } from "./api.js";
import { el, fill, setText } from "./dom.js";
import { number, short, signed } from "./format.js";
import { Tokens, legendOf } from "./tokens.js";

const LOOK = "tinker-actors-episode";
const COLOURS = [
  ["advantage", "Advantage"],
  ["logprob", "Log-prob"],
  ["mask", "Mask"],
];

/** An episode of a job. */
export async function episodeView(page, job, id, query) {
  const look = { colour: "advantage", values: false, ...JSON.parse(localStorage.getItem(LOOK) ?? "{}") };
  const at = Number(query.get("at") ?? 0);
  const filters = Object.fromEntries([...query].filter(([name]) => name !== "at"));
  const fetchTurns = (start) =>
    get(`/jobs/${job}/episodes/${encodeURIComponent(id)}`, { query: { ...filters, at, start } });
  const episode = await fetchTurns(0);
  const seat = episode.seats[at];
  const tokens = new Tokens(look, episode.largest_advantage);
  const turns = el("div", { class: "turns" });
  const legend = el("div", { class: "legend" });

  function address(other, seatAt) {
    const query = new URLSearchParams(filters);
    if (seatAt) query.set("at", seatAt);
    return `#/job/${job}/rollouts/${encodeURIComponent(other)}?${query}`;
  }

  function apply(change) {
    Object.assign(look, change);
    localStorage.setItem(LOOK, JSON.stringify(look));
    fill(legend, legendOf(look.colour, episode.largest_advantage));
    tokens.recolour();
    turns.classList.toggle("with-values", look.values);
    for (const button of colours.children) button.setAttribute("aria-pressed", String(button.value === look.colour));
  }

  const colours = el(
    "div",
    { class: "chips", role: "group", "aria-label": "Colours show" },
    COLOURS.map(([value, text]) =>
      el("button", { type: "button", class: "chip", value, onclick: () => apply({ colour: value }) }, text),
    ),
  );
  const step = (to, text, sign) =>
    to
      ? el(
          "a",
          { class: "button icon", href: address(to, at), "aria-label": text, rel: sign },
          sign === "prev" ? "‹" : "›",
        )
      : el(
          "button",
          { type: "button", class: "icon", disabled: true, "aria-label": text },
          sign === "prev" ? "‹" : "›",
        );

  const further = el("p", { class: "muted small", role: "status" });
  let shown = 0;
  let loading = false;
  const watcher = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && append(), {
    rootMargin: "600px",
  });

  function add(given) {
    turns.append(...given.map((turn, i) => turnCard(turn, shown + i + 1, seat, tokens)));
    shown += given.length;
    const left = (seat?.turns ?? 0) - shown;
    setText(further, left > 0 ? `${left} further turns follow` : "");
    watcher.disconnect(); // it tells only of changes: looked at anew, it says whether the end is still near
    if (left > 0) watcher.observe(further);
  }

  async function append() {
    if (loading || shown >= seat.turns) return;
    loading = true;
    try {
      add((await fetchTurns(shown)).turns);
    } catch (error) {
      page.toast(error.message, true);
    }
    loading = false;
  }

  add(episode.turns);
  const element = el(
    "div",
    { class: "stack episode" },
    el(
      "p",
      { class: "small" },
      el("a", { href: "#/jobs" }, "Jobs"),
      " / ",
      el("a", { href: `#/job/${job}` }, episode.job),
      " / ",
      el("a", { href: `#/job/${job}/rollouts?${new URLSearchParams(filters)}` }, "Rollouts"),
    ),
    el(
      "div",
      { class: "row apart" },
      el("h1", { class: "mono" }, episode.id),
      el(
        "div",
        { class: "row" },
        el("span", { class: "muted small" }, episode.place ? `${episode.place} of ${episode.of}` : ""),
        step(episode.previous, "Previous episode", "prev"),
        step(episode.next, "Next episode", "next"),
      ),
    ),
    el(
      "div",
      { class: "facts" },
      [
        ["Step", episode.step],
        ["Phase", episode.phase],
        ["Environment", episode.environment],
        ["Task", episode.task],
        ["End", episode.end],
        ...Object.entries(episode.metrics ?? {}).map(([name, value]) => [name, number(value)]),
      ].map(([name, value]) => el("div", {}, el("span", {}, name), el("b", {}, String(value)))),
    ),
    episode.error ? el("pre", { class: "notice bad" }, episode.error) : null,
    episode.no_tokens_because
      ? el("p", { class: "notice" }, `Texts in place of tokens: ${episode.no_tokens_because}`)
      : null,
    episode.seats.length > 1
      ? el(
          "nav",
          { class: "tabs", "aria-label": "Seats" },
          episode.seats.map((each, place) =>
            el(
              "a",
              { href: address(id, place), "aria-current": place === at ? "page" : null },
              `${each.seat} `,
              el("span", { class: "muted" }, `${number(each.reward)}${each.trainable ? "" : " frozen"}`),
            ),
          ),
        )
      : null,
    seat ? seatLine(seat) : el("p", { class: "muted" }, "No seat ever came to act."),
    el(
      "div",
      { class: "row apart sticky" },
      el(
        "div",
        { class: "row" },
        colours,
        el(
          "label",
          { class: "field" },
          el("input", {
            type: "checkbox",
            checked: look.values,
            onchange: (event) => apply({ values: event.target.checked }),
          }),
          el("span", {}, "Numbers"),
        ),
      ),
      legend,
    ),
    turns,
    further,
  );
  apply({});
  return { name: `episode ${job}`, title: episode.id, element, close: () => watcher.disconnect() };
}

function seatLine(seat) {
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

function turnCard(turn, at, seat, tokens) {
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
