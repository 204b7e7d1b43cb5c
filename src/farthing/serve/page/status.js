// What state the server is in: in a word at the top, and in a sentence above the question.

import { byId, button, make, setText } from "./dom.js";
import { counted, percent } from "./words.js";

const WORDS = {
  connecting: "Connecting",
  loading: "Loading",
  ready: "Ready",
  locked: "Key wanted",
  draining: "Shutting down",
  failed: "Not loaded",
  gone: "Not reached",
};

let shown = "";
let counting = 0;

/** Shows a state; `again` tries at once, `enterKey` asks for a key. */
export function showState(state, again, enterKey) {
  const status = byId("status");
  status.dataset.state = state.name;
  setText(status, WORDS[state.name]);
  clearInterval(counting);
  const banner = byId("banner");
  // A banner is built once and then only brought up to date: it would be read out again otherwise.
  const kind = `${state.name} ${state.message ?? ""}`;
  if (shown !== kind) {
    shown = kind;
    const parts = PARTS[state.name]?.(state, again, enterKey);
    banner.replaceChildren(...(parts ?? []));
    banner.hidden = parts === undefined;
    banner.dataset.kind = state.name === "loading" ? "info" : "error";
  }
  if (state.name === "loading") showProgress(banner, state);
  if (state.name === "gone") {
    const count = () => showCountdown(banner, state.due);
    counting = setInterval(count, 250);
    count();
  }
}

const PARTS = {
  loading: () => [
    make("p", {}, "The model is being loaded. You can write meanwhile."),
    make("p", { class: "countdown", "aria-live": "off" }),
    make("progress", { max: 1, "aria-label": "Loading" }),
  ],
  gone: (state, again) => [
    make("p", {}, `${state.message} Nothing that was said is lost.`),
    make(
      "div",
      { class: "row" },
      make("span", { class: "countdown", "aria-hidden": "true" }),
      button("Try now", again),
    ),
  ],
  locked: (state, again, enterKey) => [
    make("p", {}, state.message),
    make("div", { class: "row" }, button("Enter a key", enterKey)),
  ],
  draining: () => [make("p", {}, "The server is shutting down. This page waits for it to come back.")],
  failed: (state) => [make("p", {}, `The model could not be loaded: ${state.message}`)],
};

function showProgress(banner, state) {
  const known = typeof state.progress === "number";
  const part = known ? `, ${percent(state.progress)}` : "";
  setText(banner.querySelector(".countdown"), `${state.phase}${part}`);
  const bar = banner.querySelector("progress");
  if (known) bar.value = state.progress;
  else bar.removeAttribute("value");
}

function showCountdown(banner, due) {
  const left = Math.ceil(Math.max(0, due - performance.now()) / 1000);
  const text = left ? `Trying again in ${counted(left, "second")}.` : "Trying.";
  setText(banner.querySelector(".countdown"), text);
}
