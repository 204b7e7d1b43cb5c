// The page's parts, put together.

import { announce } from "./announce.js";
import { get } from "./api.js";
import { showCard } from "./card.js";
import { Chat } from "./chat.js";
import { showChats } from "./chats.js";
import { byId, button, make, setText } from "./dom.js";
import { Live } from "./live.js";
import { askForKey } from "./keys.js";
import { Scroller } from "./scroller.js";
import { keepSettings } from "./settings.js";
import { showState } from "./status.js";
import { Store } from "./store.js";
import { showUsage } from "./usage.js";
import { Watch } from "./watch.js";

const SUGGESTIONS = [
  "Why is the sky blue? Answer in two sentences.",
  "Write a haiku about rain on a tin roof.",
  "List three uses for an old laptop.",
];

const USAGE_MILLISECONDS = 30_000;

const store = new Store();
const question = byId("question");
const scroller = new Scroller(byId("scroller"), byId("to-end"));
const live = new Live(byId("live"));
const watch = new Watch(changed, (stats) => live.take(stats));
const chat = new Chat(store, scroller, {
  onBusy: (busy) => {
    showSend();
    if (!busy) loadUsage();
  },
  onKey: (why, then) => wantKey(why, then),
  onChange: () => {
    byId("welcome").hidden = chat.messages.length > 0;
    showChats(byId("chats"), store, open);
  },
});
let keyWasAsked = false;

function changed(state) {
  showState(state, () => watch.now(), () => wantKey(state.message));
  const stale = state.name !== "ready" && live.samples.length > 0;
  setText(byId("live-title"), stale ? "Live, as last seen" : "Live");
  showSend();
  if (state.name === "ready") {
    loadCard();
    loadUsage();
  }
  if (state.name === "locked" && !keyWasAsked) {
    keyWasAsked = true;
    wantKey(state.message);
  }
}

async function loadCard() {
  try {
    const entry = (await get("v1/models")).data[0];
    chat.nameModel(entry.id, entry.max_model_len);
    showCard(byId("card"), entry);
    setText(byId("model-name"), entry.id);
    setText(byId("welcome-text"), `${entry.id} answers, on the machine that this page comes from.`);
  } catch {
    // The watch sees the same a moment later, and says so.
  }
}

const loadUsage = () => showUsage(byId("usage-section"), byId("usage"));

async function wantKey(why, then) {
  if (!(await askForKey(why))) return;
  await watch.now();
// Others may use the same key.
setInterval(() => {
  if (!document.hidden && watch.state.name === "ready") loadUsage();
}, USAGE_MILLISECONDS);
  then?.();
}

/** The one button sends, or stops what is being answered. */
function showSend() {
  const send = byId("send");
  const ready = watch.state.name === "ready";
  setText(send, chat.busy ? "Stop" : "Send");
  send.classList.toggle("stop", chat.busy);
  send.setAttribute("aria-disabled", String(!chat.busy && (!ready || !question.value.trim())));
}

function submit() {
  const text = question.value.trim();
  if (chat.busy || !text || watch.state.name !== "ready") return;
  question.value = "";
  grow();
  chat.send(text);
}

function grow() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`;
  showSend();
}

async function open(id) {
  await chat.leave();
  if (id === null) store.begin();
  else store.open(id);
  chat.show();
  showPanel(false);
  takeFocus();
}

/** To the question, except where that would bring a keyboard up over half the page. */
function takeFocus() {
  if (!touch.matches) question.focus();
}

/** The panel is beside the chat where there is room, and over it where there is not. */
function showPanel(shown) {
  document.body.classList.toggle("panel-open", shown);
  byId("panel-toggle").setAttribute("aria-expanded", String(shown));
  if (narrow.matches) byId("panel").inert = !shown;
  document.querySelector("main").inert = narrow.matches && shown;
}

const narrow = matchMedia("(max-width: 60rem)");
const touch = matchMedia("(pointer: coarse)");
narrow.addEventListener("change", () => {
  byId("panel").inert = false;
  showPanel(false);
});

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (chat.busy) chat.stop();
  else submit();
});
question.addEventListener("input", grow);
question.addEventListener("keydown", (event) => {
  // On a touch screen Enter begins a line: there is no other key for that.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || touch.matches) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("panel-open")) {
    showPanel(false);
    byId("panel-toggle").focus();
  } else {
    chat.stop();
  }
});
byId("new-chat").addEventListener("click", () => open(null));
byId("panel-toggle").addEventListener("click", () => {
  const shown = !document.body.classList.contains("panel-open");
  showPanel(shown);
  if (shown && narrow.matches) byId("panel-close").focus();
});
byId("panel-close").addEventListener("click", () => {
  showPanel(false);
  byId("panel-toggle").focus();
});
byId("change-key").addEventListener("click", () => wantKey("Another key is used from now on."));
byId("clear").addEventListener("click", () => {
  byId("clear-dialog").returnValue = "keep"; // what Escape gives
  byId("clear-dialog").showModal();
});
byId("clear-dialog").addEventListener("close", async () => {
  if (byId("clear-dialog").returnValue !== "clear") return;
  await chat.leave();
  store.clear();
  chat.show();
  announce("All chats are cleared.");
  byId("clear").focus();
});
for (const text of SUGGESTIONS) {
  const suggestion = button(text, () => {
    question.value = text;
    submit();
    takeFocus();
  });
  byId("suggestions").append(make("li", {}, suggestion));
}

keepSettings(store);
chat.show();
showPanel(false);
grow();
takeFocus();
watch.now();
// Others may use the same key.
setInterval(() => {
  if (!document.hidden && watch.state.name === "ready") loadUsage();
}, USAGE_MILLISECONDS);
