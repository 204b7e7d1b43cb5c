// The server's figures: asked for once a second while somebody looks, and told as they move.

import { drawn, facts, make, setText } from "./dom.js";
import { count, counted, percent, rate, seconds } from "./words.js";

const WINDOW_SECONDS = 60;
const STEADY_SECONDS = 3; // a rate is of that long, so that it can be read
const WIDTH = 240;
const HEIGHT = 48;

/** The figures and the line of throughput, in an element. */
export class Live {
  constructor(container) {
    this.samples = [];
    this.values = {};
    this.line = drawn("path", { class: "line" });
    this.area = drawn("path", { class: "area" });
    this.picture = drawn(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "sparkline" },
      this.area,
      this.line,
    );
    this.now = make("strong", { class: "figure" }, "–");
    this.most = make("span", { class: "most" });
    this.bar = { held: make("span"), cached: make("span"), free: make("span") };
    const bar = make("div", { class: "cache-bar", "aria-hidden": "true" }, ...Object.values(this.bar));
    Object.entries(this.bar).forEach(([name, part]) => (part.dataset.part = name));
    const value = (name) => (this.values[name] = make("span", { id: `live-${name}` }, "–"));
    container.append(
      make("div", { class: "speed" }, make("p", {}, this.now, " tokens/s written"), this.most),
      this.picture,
      facts([
        ["Running", value("running")],
        ["Waiting", value("waiting")],
        ["Prompt tokens queued", value("queued")],
        ["Prompts read", value("reading")],
        ["Time to first token", value("first")],
      ]),
      make("h3", {}, "Cache"),
      bar,
      facts([
        [swatch("held", "In use"), value("held")],
        [swatch("cached", "Kept for reuse"), value("cached")],
        [swatch("free", "Free"), value("free")],
        ["Found in the cache", value("hits")],
        ["Preemptions", value("preemptions")],
        ["Guessed ahead", value("guessed")],
      ]),
    );
    this.draw();
  }

  /** New figures from the server. */
  take(stats) {
    const last = this.samples.at(-1);
    if (last && (stats.clock_seconds < last.clock_seconds || last.started !== stats.started)) {
      this.samples = []; // another process
    }
    this.samples.push(stats);
    const oldest = stats.clock_seconds - WINDOW_SECONDS;
    while (this.samples[0].clock_seconds < oldest) this.samples.shift();
    this.draw();
  }

  /** The growth of a figure per second, over the steady time before a sample. */
  growth(at, figure) {
    const end = this.samples[at];
    let from = at;
    while (from > 0 && end.clock_seconds - this.samples[from].clock_seconds < STEADY_SECONDS) from -= 1;
    const elapsed = end.clock_seconds - this.samples[from].clock_seconds;
    return elapsed > 0 ? (figure(end) - figure(this.samples[from])) / elapsed : 0;
  }

  draw() {
    const stats = this.samples.at(-1);
    const speeds = this.samples.map((_, at) => this.growth(at, (each) => each.generated_tokens));
    this.drawLine(speeds);
    if (!stats) return;
    const now = speeds.at(-1);
    const reading = this.growth(this.samples.length - 1, (each) => each.prompt_tokens - each.reused_tokens);
    setText(this.now, rate(now));
    const most = Math.max(...speeds);
    setText(this.most, most > 0 ? `peak ${rate(most)}` : "");
    const told = `Tokens written a second in the last minute: now ${rate(now)}, at most ${rate(most)}`;
    this.picture.setAttribute("aria-label", told);
    const tokens = (blocks) => `${count(blocks * stats.block_tokens)} tokens`;
    const set = (name, text) => setText(this.values[name], text);
    set("running", `${count(stats.running)} of ${count(stats.slots)}`);
    set("waiting", count(stats.waiting));
    set("queued", count(stats.queued_tokens));
    set("reading", `${rate(Math.max(0, reading))} tokens/s`);
    set("first", this.firstToken(stats));
    for (const part of ["held", "cached", "free"]) {
      const blocks = stats[`${part}_blocks`];
      set(part, tokens(blocks));
      this.bar[part].style.flexGrow = blocks;
    }
    const seen = stats.prompt_tokens;
    set("hits", seen ? `${percent(stats.reused_tokens / seen)} of prompts` : "–");
    const again = stats.recomputed_tokens;
    const lost = again ? `, ${counted(again, "token")} computed again` : "";
    const right = `${percent(stats.accepted_tokens / stats.drafted_tokens)} of tokens right`;
    set("guessed", stats.drafted_tokens ? right : "–");
    set("preemptions", `${count(stats.preemptions)}${lost}`);
  }

  /** The mean of the requests in the window, or of all where none was in it. */
  firstToken(stats) {
    const before = this.samples[0];
    let requests = stats.first_tokens - before.first_tokens;
    let sum = stats.first_token_seconds - before.first_token_seconds;
    if (requests === 0) [requests, sum] = [stats.first_tokens, stats.first_token_seconds];
    return requests ? `${seconds(sum / requests)} on average` : "–";
  }

  drawLine(speeds) {
    const end = this.samples.at(-1)?.clock_seconds ?? 0;
    const top = Math.max(1, ...speeds);
    const points = speeds.map((speed, at) => {
      const age = end - this.samples[at].clock_seconds;
      const x = WIDTH - (age / WINDOW_SECONDS) * WIDTH;
      return `${x.toFixed(1)} ${(HEIGHT - 2 - (speed / top) * (HEIGHT - 6)).toFixed(1)}`;
    });
    const path = points.length ? `M${points.join("L")}` : "";
    this.line.setAttribute("d", path);
    const start = points[0]?.split(" ")[0];
    this.area.setAttribute("d", path ? `${path}L${WIDTH} ${HEIGHT}L${start} ${HEIGHT}Z` : "");
  }
}

function swatch(part, name) {
  return make("span", {}, make("span", { class: "swatch", "data-part": part, "aria-hidden": "true" }), name);
}
