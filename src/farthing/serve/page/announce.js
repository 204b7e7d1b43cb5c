// What a screen reader is told of a stream: whole sentences as they are done, not every word.

import { byId, make } from "./dom.js";

const MOST_LINES = 30;
const SENTENCE_END = /[.!?:;。！？](?=\s)|\n/g;

export function announce(text) {
  const log = byId("announcements");
  log.append(make("p", {}, text));
  while (log.childElementCount > MOST_LINES) log.firstElementChild.remove();
}

/** Reads out one answer while it grows. */
export class Reader {
  constructor() {
    this.told = 0;
  }

  /** The whole text so far; where `ended`, nothing is held back. */
  read(text, ended) {
    let end = ended ? text.length : this.told;
    if (!ended) {
      SENTENCE_END.lastIndex = this.told;
      for (let found; (found = SENTENCE_END.exec(text)); ) end = found.index + 1;
    }
    const sentence = text.slice(this.told, end).trim();
    this.told = end;
    if (sentence) announce(sentence);
  }
}
