// What the tab remembers: chats, settings and the key. It is in sessionStorage: closing the tab
// forgets it, and no other tab and no server sees it.

const MOST_CHATS = 50;

export const DEFAULTS = Object.freeze({ system: "", temperature: 0.7, maxTokens: null, seed: null });

function read(name, fallback) {
  try {
    return JSON.parse(sessionStorage.getItem(`farthing.${name}`)) ?? fallback;
  } catch {
    return fallback; // storage is switched off, or was written by something else
  }
}

function write(name, value) {
  try {
    sessionStorage.setItem(`farthing.${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** The chats, newest first, and the settings. */
export class Store {
  constructor() {
    this.settings = { ...DEFAULTS, ...read("settings", {}) };
    const chats = read("chats", []);
    this.chats = Array.isArray(chats) ? chats.filter((each) => Array.isArray(each?.messages)) : [];
    this.current = this.chats.find((each) => each.id === read("current", null)) ?? this.begin();
  }

  /** A new chat; an empty one is taken again. */
  begin() {
    const empty = this.chats.find((each) => each.messages.length === 0);
    const id = crypto.getRandomValues(new Uint32Array(2)).join("-");
    if (!empty) this.chats.unshift({ id, messages: [] });
    this.current = empty ?? this.chats[0];
    this.saveChats();
    return this.current;
  }

  open(id) {
    this.current = this.chats.find((each) => each.id === id) ?? this.current;
    this.saveChats();
  }

  clear() {
    this.chats = [];
    this.begin();
  }

  saveSettings() {
    write("settings", this.settings);
  }

  /** False where the browser keeps no more. The oldest chats make room first. */
  saveChats() {
    this.chats.length = Math.min(this.chats.length, MOST_CHATS);
    if (!this.chats.includes(this.current)) this.chats[this.chats.length - 1] = this.current;
    write("current", this.current.id);
    while (!write("chats", this.chats)) {
      const oldest = this.chats.findLast((each) => each !== this.current);
      if (oldest === undefined) return false;
      this.chats.splice(this.chats.indexOf(oldest), 1);
    }
    return true;
  }
}

let unsavedKey = "";

export const key = {
  get: () => read("key", unsavedKey),
  set: (value) => {
    unsavedKey = value;
    write("key", value);
  },
};
