// The system message and how answers are sampled: a form that remembers itself.

import { byId, setText } from "./dom.js";
import { DEFAULTS } from "./store.js";

const NUMBERS = [["temperature", "temperature"], ["max-tokens", "maxTokens"], ["seed", "seed"]];

/** Ties the form to the store. Numbers that make no sense are marked, and not taken. */
export function keepSettings(store) {
  const form = byId("settings");
  const show = () => {
    byId("system").value = store.settings.system;
    for (const [id, name] of NUMBERS) byId(id).value = store.settings[name] ?? "";
  };
  const take = () => {
    store.settings.system = byId("system").value;
    for (const [id, name] of NUMBERS) {
      const field = byId(id);
      field.setAttribute("aria-invalid", String(!sound(field)));
      if (!sound(field)) continue;
      store.settings[name] = field.value === "" ? DEFAULTS[name] : field.valueAsNumber;
    }
    store.saveSettings();
  };
  form.addEventListener("input", take);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    Object.assign(store.settings, DEFAULTS);
    show();
    take();
    setText(byId("settings-reset"), "These are the defaults");
    setTimeout(() => setText(byId("settings-reset"), "Back to the defaults"), 1500);
  });
  byId("temperature").placeholder = String(DEFAULTS.temperature);
  show();
}

/** Any decimals are as good as those at the arrows' steps; a seed must be a whole number. */
function sound(field) {
  const { badInput, rangeOverflow, rangeUnderflow } = field.validity;
  if (badInput || rangeOverflow || rangeUnderflow) return false;
  return field.id === "temperature" || field.value === "" || Number.isSafeInteger(field.valueAsNumber);
}
