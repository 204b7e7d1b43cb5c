// The chats of this tab, to go back to.

import { button, make } from "./dom.js";

const LONGEST_TITLE = 60;

/** Lists the chats that have something in them. */
export function showChats(list, store, open) {
  const chats = store.chats.filter((chat) => chat.messages.length > 0);
  const items = chats.map((chat) => {
    const current = chat === store.current ? "true" : null;
    const item = button(titleOf(chat), () => open(chat.id), { "aria-current": current });
    return make("li", {}, item);
  });
  const none = make("li", { class: "help" }, "None yet.");
  list.replaceChildren(...(items.length ? items : [none]));
}

function titleOf(chat) {
  const text = chat.messages[0].content.replace(/\s+/g, " ");
  return text.length > LONGEST_TITLE ? `${text.slice(0, LONGEST_TITLE - 1)}…` : text;
}
