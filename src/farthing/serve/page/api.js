// The server's API, as this page uses it. Addresses are relative to the page's own, so that it works
// behind a proxy that puts it into a folder.

import { key } from "./store.js";

/** A request that was not answered as hoped. `status` is 0 where nobody answered. */
export class Failure extends Error {
  constructor(message, status = 0, code = null, retrySeconds = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retrySeconds = retrySeconds;
  }
}

async function ask(path, options) {
  const headers = { ...options.headers };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  try {
    return await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (options.signal?.aborted && options.signal.reason?.name === "AbortError") throw error;
    throw new Failure("The server does not answer.");
  }
}

async function failureOf(response) {
  const milliseconds = Number(response.headers.get("retry-after-ms"));
  const whole = Number(response.headers.get("retry-after"));
  const retry = milliseconds ? milliseconds / 1000 : whole || null;
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // Not from farthing: a proxy's page, perhaps. The status says what there is to say.
  }
  const message = error.message ?? `The server answered with status ${response.status}.`;
  return new Failure(message, response.status, error.code ?? null, retry);
}

/** JSON from a path; throws `Failure`, except for the statuses that `also` are answers. */
export async function get(path, also = []) {
  const response = await ask(path, { signal: AbortSignal.timeout(5000) });
  if (!response.ok && !also.includes(response.status)) throw await failureOf(response);
  try {
    return await response.json();
  } catch {
    throw new Failure("The server's answer was cut off or is not from farthing.");
  }
}

/**
 * Streams a chat: `onChunk` is given each chunk. `body` is JSON already, so that a request can be
 * made again to the byte. Throws `Failure`, also for an error within the stream, and the signal's
 * AbortError.
 */
export async function stream(body, signal, onChunk) {
  const headers = { "content-type": "application/json" };
  const response = await ask("v1/chat/completions", { method: "POST", body, signal, headers });
  if (!response.ok) throw await failureOf(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const cut = () => new Failure("The connection was lost before the answer ended.", 0, "cut");
  let rest = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw cut();
    }
    if (piece.done) throw cut();
    const events = (rest + piece.value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment keeps a silent line open
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(chunk.error.message, 0, chunk.error.code ?? null);
      onChunk(chunk);
    }
  }
}
