// The model card: what is served, how it lies in memory, and how good it was measured to be.

import { facts, make } from "./dom.js";
import { receiptParts } from "./receipt.js";
import { bytes, count, counted, large } from "./words.js";

/** Shows an entry of /v1/models in an element. */
export function showCard(container, entry) {
  const details = entry.details ?? {};
  const rows = [
    ["Name", entry.id],
    ["Architecture", details.architecture],
    ["Parameters", details.parameters && large(details.parameters)],
    ["Formats", formats(details.formats)],
    ["Context", counted(entry.max_model_len, "token")],
    ["Cache", cache(details)],
    ["Memory", details.memory_bytes && memory(details.memory_bytes)],
    ["Instructions", details.isa],
    ["Threads", details.threads],
    ["Licence", details.licence ?? "not stated"],
    ["Receipt", details.receipt ?? (entry.receipt ? null : "no receipt")],
  ];
  const known = rows.filter(([, value]) => value !== undefined && value !== null && value !== "");
  const told = known.map(([name, value]) => [name, typeof value === "number" ? count(value) : value]);
  container.replaceChildren(facts(told));
  if (entry.receipt) container.append(...receiptParts(entry.receipt));
  if (!entry.receipt && !details.receipt) {
    const text = "Nobody has measured what this file's quantisation costs in quality.";
    container.append(make("p", { class: "help" }, text));
  }
}

/** { Q4_1: 150, F32: 61 } -> "Q4_1 (150 tensors), F32 (61)", which breaks at the comma only */
function formats(counts) {
  const named = Object.entries(counts ?? {}).sort(([, a], [, b]) => b - a);
  const told = named.map(([name, tensors], place) => {
    return `${name}\u00a0(${count(tensors)}${place ? "" : "\u00a0tensors"})`;
  });
  return told.join(", ");
}

function cache(details) {
  if (!details.cache_tokens) return null;
  return `${counted(details.cache_tokens, "token")} in ${details.kv_dtype}`;
}

function memory(kinds) {
  const total = Object.values(kinds).reduce((sum, size) => sum + size, 0);
  const parts = Object.entries(kinds).sort(([, a], [, b]) => b - a);
  return make(
    "details",
    {},
    make("summary", {}, bytes(total)),
    facts(parts.map(([name, size]) => [name.replaceAll("_", " "), bytes(size)])),
  );
}
