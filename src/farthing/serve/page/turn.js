// One message of a chat on the page: its text, what it took, what went wrong, what can be done.

import { button, make, setText } from "./dom.js";
import { copyText, Rendering } from "./markdown.js";
import { count, counted, ending, missSentence, rate, seconds } from "./words.js";

/** The element of a message, and how it is brought up to date. */
export class Turn {
  constructor(message, modelName) {
    this.message = message;
    this.mine = message.role === "user";
    this.who = make("h2", { class: "who" }, this.mine ? "You" : modelName);
    this.text = make("div", { class: "text" });
    this.copy = button("Copy", () => copyText(message.content, this.copy), { class: "quiet" });
    this.copy.setAttribute("aria-label", this.mine ? "Copy your message" : "Copy this answer");
    this.actions = make("div", { class: "actions" }, this.copy);
    this.element = make("li", { class: "message", "data-role": message.role }, this.who, this.text);
    this.countdown = null;
    if (this.mine) {
      this.text.append(message.content);
      this.element.append(this.actions);
      return;
    }
    this.rendering = new Rendering(this.text);
    this.thoughts = make("div", { class: "thoughts" });
    this.thinking = make("summary", {});
    this.reasoning = make("details", { class: "reasoning", hidden: true }, this.thinking, this.thoughts);
    this.text.before(this.reasoning);
    this.notice = make("div", { class: "notice", role: "alert", hidden: true });
    this.miss = make("p", { class: "miss", hidden: true });
    this.meta = make("p", { class: "meta", hidden: true });
    const under = make("div", { class: "under" }, this.meta, this.actions);
    this.element.append(this.notice, this.miss, under);
    this.draw();
  }

  nameModel(name) {
    if (!this.mine) setText(this.who, name);
  }

  /** Shows an answer as it is now. */
  draw() {
    const { message } = this;
    const growing = message.state === "streaming";
    this.rendering.show(message.content);
    this.reasoning.hidden = !message.reasoning;
    setText(this.thinking, growing && !message.content ? "Reasoning…" : "Reasoning");
    setText(this.thoughts, message.reasoning ?? "");
    this.element.classList.toggle("growing", growing);
    this.text.setAttribute("aria-busy", String(growing));
    this.actions.hidden = growing;
    this.copy.hidden = !message.content;
    const facts = metaOf(message);
    this.meta.hidden = !facts.length;
    setText(this.meta, facts.join(" · "));
    const miss = missSentence(message.miss, message.said);
    this.miss.hidden = miss === null;
    setText(this.miss, miss ?? "");
  }

  /** Lets this answer be asked for again. */
  allowRetry(retry) {
    this.forbidRetry();
    this.retry = button("Retry", retry, { class: "quiet" });
    this.retry.setAttribute("aria-label", "Ask for another answer");
    this.actions.append(this.retry);
  }

  forbidRetry() {
    this.retry?.remove();
    this.retry = null;
  }

  /** Says what went wrong; `again`, where given, asks once more. */
  complain(text, again) {
    this.quieten();
    this.notice.dataset.kind = "error";
    this.notice.hidden = false;
    this.notice.append(make("p", {}, text));
    if (again) this.notice.append(make("div", { class: "row" }, button("Ask again", again)));
  }

  /**
   * Says that the server is busy, and counts down to the time that it named. The button asks again
   * then, or at once when the time has come.
   */
  wait(text, wholeSeconds, again) {
    this.quieten();
    const due = performance.now() + wholeSeconds * 1000;
    let armed = false;
    // The text is said once; a count that changes every second is for the eye only.
    const left = make("p", { "aria-hidden": "true", class: "countdown" });
    const ask = button("", () => {
      if (performance.now() >= due) return this.askAgain(again);
      armed = !armed;
      tick();
      return undefined;
    });
    const tick = () => {
      const remaining = Math.max(0, due - performance.now()) / 1000;
      const shown = counted(Math.ceil(remaining), "second");
      if (remaining === 0 && armed) return this.askAgain(again);
      setText(left, remaining ? `There should be room in ${shown}.` : "There should be room now.");
      if (!remaining) setText(ask, "Ask again now");
      else setText(ask, armed ? "It will ask by itself: cancel" : "Ask again by itself then");
      ask.setAttribute("aria-pressed", String(armed));
      if (!remaining) clearInterval(this.countdown);
      return undefined;
    };
    this.notice.dataset.kind = "busy";
    this.notice.hidden = false;
    this.notice.append(make("p", {}, text), left, make("div", { class: "row" }, ask));
    this.countdown = setInterval(tick, 250);
    tick();
  }

  askAgain(again) {
    this.quieten();
    again();
  }

  /** Takes back what was complained about. */
  quieten() {
    if (this.mine) return;
    clearInterval(this.countdown);
    this.notice.replaceChildren();
    this.notice.hidden = true;
  }
}

/** What an answer took, in a few words each. */
function metaOf(message) {
  const facts = [];
  if (message.tokens) facts.push(counted(message.tokens, "token"));
  if (message.firstSeconds != null) facts.push(`first after ${seconds(message.firstSeconds)}`);
  if (message.rate) facts.push(`${rate(message.rate)} tokens/s`);
  if (message.promptTokens) {
    const cached = message.cachedTokens ?? 0;
    const how = cached ? `${count(cached)} of them cached` : "none of them cached";
    facts.push(`prompt of ${counted(message.promptTokens, "token")}, ${how}`);
  }
  const end = ending(message.state);
  if (end) facts.push(end);
  return facts;
}
