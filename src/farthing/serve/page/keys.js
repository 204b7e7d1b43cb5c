// The dialog that asks for the server's key.

import { byId, setText } from "./dom.js";
import { key } from "./store.js";

/** What a person is told whom the server refused for the key. */
export const keyWords = (failure) =>
  failure.code === "missing_api_key"
    ? "This server answers only those who have a key. Whoever runs it can give you one."
    : "The server does not know this key.";

/** Asks for a key; true where one was given. `why` says what it is wanted for. */
export function askForKey(why) {
  const dialog = byId("key-dialog");
  if (dialog.open) return Promise.resolve(false);
  setText(byId("key-why"), why);
  byId("key").value = key.get();
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    const closed = () => {
      const given = dialog.returnValue === "use";
      if (given) key.set(byId("key").value.trim());
      byId("key").value = "";
      resolve(given);
    };
    dialog.addEventListener("close", closed, { once: true });
  });
}
