// Whether the server is there, loading, ready or gone; and its figures while it is ready.

import { Failure, get } from "./api.js";
import { keyWords } from "./keys.js";

const READY_MILLISECONDS = 1000;
const LOADING_MILLISECONDS = 300;
const GONE_MILLISECONDS = [1000, 1000, 2000, 3000, 5000];

const HEALTH = ["ready", "loading", "failed", "draining"];

/**
 * Asks again and again. `onState` is given { name, ... }: "connecting", "loading" with phase and
 * progress, "ready", "locked", "draining", "failed" with a message, or "gone" with the time of the
 * next try. `onStats` is given the figures.
 */
export class Watch {
  constructor(onState, onStats) {
    this.onState = onState;
    this.onStats = onStats;
    this.state = { name: "connecting" };
    this.failures = 0;
    this.timer = 0;
    this.asking = false;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.now();
    });
  }

  /** Asks at once. */
  async now() {
    clearTimeout(this.timer);
    if (this.asking) return;
    this.asking = true;
    let next;
    try {
      next = await this.look();
    } finally {
      this.asking = false;
    }
    // A hidden page asks for nothing; it does as soon as it is seen.
    if (!document.hidden) this.timer = setTimeout(() => this.now(), next);
  }

  async look() {
    try {
      if (this.state.name !== "ready") {
        const health = await get("health", [503]);
        if (!HEALTH.includes(health.status)) throw new Failure("This is not farthing's server.");
        if (health.status !== "ready") {
          this.failures = 0;
          this.change({ ...health, name: health.status });
          return health.status === "loading" ? LOADING_MILLISECONDS : READY_MILLISECONDS;
        }
      }
      const stats = await get("stats");
      this.failures = 0;
      if (this.state.name !== "ready") this.change({ name: "ready" });
      this.onStats(stats);
      return READY_MILLISECONDS;
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      return this.failed(failure);
    }
  }

  failed(failure) {
    if (failure.status === 401) {
      this.change({ name: "locked", message: keyWords(failure) });
      return GONE_MILLISECONDS.at(-1);
    }
    if (failure.status === 503) {
      this.change({ name: "connecting" });
      return 0; // its health says why
    }
    const pause = GONE_MILLISECONDS[Math.min(this.failures, GONE_MILLISECONDS.length - 1)];
    this.failures += 1;
    this.change({ name: "gone", message: failure.message, due: performance.now() + pause });
    return pause;
  }

  change(state) {
    this.state = state;
    this.onState(state);
  }
}
