// A conversation: what is sent, how the answer grows, and what happens when it does not.

import { announce, Reader } from "./announce.js";
import { Failure, stream } from "./api.js";
import { byId, setText } from "./dom.js";
import { keyWords } from "./keys.js";
import { Turn } from "./turn.js";
import { count, counted } from "./words.js";

const SAVE_MILLISECONDS = 1000;
const SHORTEST_MILLISECONDS = 50; // in less, what arrived says more of the network than of the model

/** The chat that is shown. `onBusy` is told when an answer begins and ends, `onKey` asks for one. */
export class Chat {
  constructor(store, scroller, { onBusy, onKey, onChange }) {
    this.store = store;
    this.scroller = scroller;
    this.onBusy = onBusy;
    this.onKey = onKey;
    this.onChange = onChange;
    this.modelName = "Model";
    this.contextLength = null;
    this.turns = [];
    this.abort = null;
    this.running = null;
    this.leaving = false;
    addEventListener("pagehide", () => {
      this.leaving = true;
      this.save();
    });
    addEventListener("pageshow", () => (this.leaving = false));
  }

  get busy() {
    return this.abort !== null;
  }

  get messages() {
    return this.store.current.messages;
  }

  /** From now on this model answers. */
  nameModel(name, contextLength) {
    this.modelName = name;
    this.contextLength = contextLength;
    for (const turn of this.turns) turn.nameModel(name);
    this.showUse();
  }

  /** Shows the current chat from its beginning. */
  show() {
    for (const turn of this.turns) turn.quieten();
    for (const message of this.messages) {
      if (message.state === "streaming") message.state = "interrupted";
    }
    this.turns = this.messages.map((message) => new Turn(message, this.modelName));
    byId("messages").replaceChildren(...this.turns.map((turn) => turn.element));
    const last = this.turns.at(-1);
    if (last?.message.role === "assistant") {
      const again = () => this.again();
      if (last.message.error) last.complain(last.message.error, again);
      else last.allowRetry(again);
    }
    this.showUse();
    this.onChange();
    this.scroller.toEnd();
  }

  /** Sends a message, and takes the answer. */
  send(text) {
    this.turns.at(-1)?.forbidRetry();
    this.turns.at(-1)?.quieten();
    this.add({ role: "user", content: text });
    this.ask();
  }

  /** Throws the last answer away and asks for another. */
  again() {
    if (this.busy) return;
    const turn = this.turns.pop();
    turn.quieten();
    turn.element.remove();
    this.messages.pop();
    this.ask();
  }

  stop() {
    this.abort?.abort();
  }

  /** Stops, and returns when all is noted that there was. */
  async leave() {
    this.stop();
    await this.running;
  }

  add(message) {
    this.messages.push(message);
    const turn = new Turn(message, this.modelName);
    this.turns.push(turn);
    byId("messages").append(turn.element);
    this.onChange();
    this.scroller.toEnd();
    return turn;
  }

  ask() {
    const request = this.request();
    // A first question can have missed nothing that was said in this chat.
    const goesOn = request.messages.some((each) => each.role === "assistant");
    const said = goesOn ? request.messages.length : 0;
    const turn = this.add({ role: "assistant", content: "", state: "streaming", said });
    this.begin(turn, JSON.stringify(request));
  }

  begin(turn, body) {
    if (!this.busy) this.running = this.run(turn, body);
  }

  /** The request for an answer to all that has been said. A question without an answer is left out. */
  request() {
    const { system, temperature, maxTokens, seed } = this.store.settings;
    const said = [];
    this.messages.forEach(({ role, content }, place) => {
      const answer = this.messages[place + 1];
      const unanswered = role === "user" && answer !== undefined && !answer.content;
      if (content && !unanswered) said.push({ role, content });
    });
    if (system.trim()) said.unshift({ role: "system", content: system });
    const request = { messages: said, temperature, stream: true };
    request.explain_prefix_miss = true;
    request.stream_options = { include_usage: true, continuous_usage_stats: true };
    if (maxTokens !== null) request.max_tokens = maxTokens;
    if (seed !== null) request.seed = seed;
    return request;
  }

  async run(turn, body) {
    const { message } = turn;
    const abort = (this.abort = new AbortController());
    const reader = new Reader();
    const began = performance.now();
    const clock = { first: null, firstTokens: 0 };
    message.state = "streaming";
    delete message.error;
    turn.forbidRetry();
    this.onBusy(true);
    announce("The answer begins.");
    let frame = 0;
    const draw = () => {
      frame = 0;
      turn.draw();
      reader.read(message.content, message.state !== "streaming");
      this.scroller.follow();
    };
    const saving = setInterval(() => this.save(), SAVE_MILLISECONDS);
    let failure = null;
    try {
      await stream(body, abort.signal, (chunk) => {
        take(message, chunk, clock, began);
        frame ||= requestAnimationFrame(draw);
      });
      if (message.state === "streaming") message.state = "done";
    } catch (error) {
      failure = abort.signal.aborted ? null : error;
      message.state = abort.signal.aborted ? "stopped" : "error";
      if (this.leaving) message.state = "interrupted";
    }
    cancelAnimationFrame(frame);
    clearInterval(saving);
    this.abort = null;
    draw();
    if (failure) {
      this.fail(turn, failure, body);
    } else {
      const done = `Done: ${counted(message.tokens ?? 0, "token")}.`;
      announce(message.state === "stopped" ? "Stopped." : done);
      turn.allowRetry(() => this.again());
    }
    this.save();
    this.showUse();
    this.onBusy(false);
    this.scroller.follow();
  }

  /** An answer failed: the reason stands beside what there is of it. */
  fail(turn, failure, body) {
    const { message } = turn;
    const known = failure instanceof Failure;
    const said = known ? sentence(failure.message) : "The page failed on this answer by a fault of its own.";
    if (!known) console.error(failure);
    const repeat = () => this.begin(turn, body); // to the byte: the server knows it again by that
    if (failure.status === 429 && failure.retrySeconds !== null) {
      message.error = "The server was too busy to answer.";
      turn.wait(`The server is busy. ${said}`, failure.retrySeconds, repeat);
      return;
    }
    const kept = message.content ? " What had come is kept." : "";
    message.error = said + kept;
    turn.complain(message.error, () => this.again());
    if (failure.status === 401) this.onKey(keyWords(failure), () => this.again());
  }

  save() {
    this.saved = this.store.saveChats();
    this.showUse();
  }

  showUse() {
    const last = this.messages.findLast((message) => message.promptTokens);
    const used = last ? last.promptTokens + (last.tokens ?? 0) : 0;
    let text = "";
    if (used && this.contextLength) {
      text = `${count(used)} of ${count(this.contextLength)} tokens of context used`;
    }
    if (this.saved === false) text = "This browser keeps no more: this chat will not outlive the tab.";
    setText(byId("context-use"), text);
  }
}

/** What a chunk adds to an answer. */
function take(message, chunk, clock, began) {
  const now = performance.now();
  const { usage } = chunk;
  if (usage) {
    message.promptTokens = usage.prompt_tokens;
    const details = usage.prompt_tokens_details ?? {};
    message.cachedTokens = details.cached_tokens ?? 0;
    const { reason, message: place, text, avoidable_tokens: again } = details.prefix_miss ?? {};
    message.miss = reason ? { reason, place, text, again } : null;
    message.tokens = usage.completion_tokens;
  }
  const choice = chunk.choices[0];
  if (!choice) return;
  message.reasoning = (message.reasoning ?? "") + (choice.delta.reasoning_content ?? "");
  message.content += choice.delta.content ?? "";
  if (choice.finish_reason === "length") message.state = "length";
  if (!message.tokens) return;
  if (clock.first === null) {
    clock.first = now;
    clock.firstTokens = message.tokens;
    message.firstSeconds = (now - began) / 1000;
  } else if (now - clock.first >= SHORTEST_MILLISECONDS) {
    message.rate = ((message.tokens - clock.firstTokens) * 1000) / (now - clock.first);
  }
}

function sentence(text) {
  const whole = /[.!?]$/.test(text) ? text : `${text}.`;
  return whole[0].toUpperCase() + whole.slice(1);
}
