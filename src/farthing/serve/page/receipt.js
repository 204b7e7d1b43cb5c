// The receipt of a quantised model: what it cost in quality, and all else that was measured.

import { facts, make } from "./dom.js";
import { count, percent } from "./words.js";

/** Elements that show a receipt: the figures that people ask for first, then all of it. */
export function receiptParts(receipt) {
  const reference = receipt.reference?.name;
  const rows = [
    ["Scheme", scheme(receipt)],
    ["Measured against", reference && against(receipt.reference)],
    ["Same next token", interval(receipt.agreement, percent)],
    ["Perplexity", interval(receipt.perplexity_ratio, (ratio) => `×\u00a0${plain(ratio)}`)],
    ["KL divergence", interval(receipt.kl?.mean, plain)],
    ["Questions right", questions(receipt.battery)],
  ];
  const warnings = Array.isArray(receipt.warnings) ? receipt.warnings : [];
  return [
    make("h3", {}, "What quantising cost"),
    facts(rows.filter(([, value]) => value)),
    ...warnings.map((each) => make("p", { class: "help" }, `Note: ${each}.`)),
    make("details", { class: "whole" }, make("summary", {}, "The whole receipt"), nested(receipt)),
  ];
}

function scheme({ scheme: name, bits_per_weight: bits, methods }) {
  if (!name) return null;
  const how = Array.isArray(methods) && methods.length ? ` with ${methods.join(", ")}` : "";
  return typeof bits === "number" ? `${name}${how}, ${plain(bits)} bits a weight` : `${name}${how}`;
}

function against({ name, bits_per_weight: bits }) {
  return typeof bits === "number" ? `${name}, ${plain(bits)} bits a weight` : name;
}

function questions(battery) {
  if (typeof battery?.correct !== "number") return null;
  const before = battery.reference_correct;
  const reference = typeof before === "number" ? ` (before: ${count(before)})` : "";
  return `${count(battery.correct)} of ${count(battery.questions)}${reference}`;
}

/** A receipt is nested names and values; all of it is shown. */
function nested(measured) {
  const rows = Object.entries(measured).map(([name, value]) => {
    const deeper = value !== null && typeof value === "object" && !Array.isArray(value);
    return [name.replaceAll("_", " "), interval(value, plain) ?? (deeper ? nested(value) : plain(value))];
  });
  return facts(rows);
}

/** A number and the interval that it lies in, in one line; null for anything else. */
function interval(value, written) {
  const numbers = [value?.value, value?.low, value?.high];
  if (!numbers.every((each) => typeof each === "number")) return null;
  const [number, low, high] = numbers.map(written);
  return `${number} (${low} to ${high})`;
}

function plain(value) {
  if (value === null || value.length === 0) return "none";
  if (Array.isArray(value)) return value.join("; ");
  const fraction = typeof value === "number" && !Number.isInteger(value);
  return fraction ? String(Number(value.toPrecision(4))) : String(value);
}
