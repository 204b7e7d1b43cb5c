// What the key of this page used: today, and in the time that the server tells of unasked.

import { Failure, get } from "./api.js";
import { facts, make } from "./dom.js";
import { count, percent, seconds } from "./words.js";

/** Shows it in an element of a section, which is hidden where the server keeps none. */
export async function showUsage(section, container) {
  let report;
  try {
    report = await get("usage");
  } catch (failure) {
    if (!(failure instanceof Failure)) throw failure;
    if (failure.status === 404) section.hidden = true;
    return; // what was shown stays
  }
  const today = report.data.filter((each) => each.day === report.until);
  const priced = report.price_per_hour > 0 || report.total.cost > 0;
  const money = priced ? (cost) => price(cost, report.currency) : null;
  section.hidden = false;
  container.replaceChildren(
    make("h3", {}, "Today (UTC)"),
    told(summed(today), money),
    make("h3", {}, `Since ${report.since}`),
    told(report.total, money),
  );
  if (!report.lasting) {
    container.append(make("p", { class: "help" }, "Kept in memory only: lost when the server ends."));
  }
}

function summed(entries) {
  const sum = { requests: 0, prompt_tokens: 0, cached_tokens: 0, generated_tokens: 0 };
  Object.assign(sum, { machine_seconds: 0, cost: 0 });
  for (const each of entries) {
    for (const name of Object.keys(sum)) sum[name] += each[name];
  }
  return sum;
}

function told(used, money) {
  const cached = used.prompt_tokens ? ` (${percent(used.cached_tokens / used.prompt_tokens)} cached)` : "";
  const rows = [
    ["Requests", count(used.requests)],
    ["Prompt tokens", `${count(used.prompt_tokens)}${cached}`],
    ["Tokens written", count(used.generated_tokens)],
    ["Machine time", seconds(used.machine_seconds)],
  ];
  if (money) rows.push(["Cost", money(used.cost)]);
  return facts(rows);
}

function price(cost, currency) {
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: cost < 1 ? 6 : 2 };
  try {
    return new Intl.NumberFormat("en", { style: "currency", currency, ...digits }).format(cost);
  } catch {
    // A word that is no currency's code: whoever runs the server may count in anything.
    return `${new Intl.NumberFormat("en", digits).format(cost)} ${currency}`;
  }
}
