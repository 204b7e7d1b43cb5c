// How numbers and events are told.

const counting = new Intl.NumberFormat("en");

export const count = (number) => counting.format(number);

export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function seconds(value) {
  if (value < 0.1) return `${Math.round(value * 1000)} ms`;
  return `${value < 10 ? value.toFixed(2) : value.toFixed(1)} s`;
}

export const rate = (value) => (value < 100 ? value.toFixed(1) : count(Math.round(value)));

export function bytes(number) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (number >= 1000 && unit < units.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit && number < 100 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

/** 134515008 -> "134.5 million" */
export function large(number) {
  for (const [size, name] of [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]]) {
    if (number >= size) return `${(number / size).toFixed(1)} ${name}`;
  }
  return count(number);
}

export const percent = (part) => `${(part * 100).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;

const ENDINGS = {
  length: "It ended at the limit of tokens.",
  stopped: "You stopped it.",
  interrupted: "The page was left before it ended.",
};

/** Why an answer ended where it did; null where it ended by itself. */
export const ending = (reason) => ENDINGS[reason] ?? null;

const LONG_MISS = 64;

/**
 * Why much of what had been said was read again though the cache could have had it; null where that
 * was not so. That the last of `said` messages is a new one is no news.
 */
export function missSentence(miss, said) {
  if (!miss || !said || miss.again < LONG_MISS) return null;
  const again = `${counted(miss.again, "token")} of the prompt were read again`;
  if (miss.reason === "evicted") {
    return `${again}: they had been in the cache, but others needed the room.`;
  }
  if (miss.place === null || miss.place >= said - 1) return null;
  const where = miss.place === 0 ? "the first message" : `message ${miss.place + 1}`;
  return `${again}: in ${where} the text is not what it was before, from “${excerpt(miss.text)}” on.`;
}

function excerpt(text) {
  // The template's own marks mean nothing to a reader.
  const words = text
    .replace(/<\|?[^<>]*\|?>/g, " ")
    .replace(/\s+/g, " ")
    .replace(/^[^\p{L}\p{N}]+/u, "")
    .trim();
  return words.length > 60 ? `…${words.slice(-60)}` : words;
}
