/** Server-sent events over `fetch`: `EventSource` cannot send a header, and the key must not be in an address. */

import { NetworkError } from "./errors.js";

/** Parses a stream as the HTML standard describes. An event that is cut off at its end is dropped. */
export class SseParser {
  #rest = "";
  #event = "";
  #data = [];
  #id;

  /** Takes the next piece of text and returns the events that it completes. */
  push(piece) {
    const text = this.#rest + piece;
    // A CR at the end may be half of a CR LF.
    const end = text.endsWith("\r") ? text.length - 1 : text.length;
    const lines = text.slice(0, end).split(/\r\n|\r|\n/);
    this.#rest = lines.pop() + text.slice(end);
    return lines.map((line) => this.#take(line)).filter((message) => message !== undefined);
  }

  #take(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return undefined;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.#event = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id") this.#id = value;
    return undefined;
  }

  #dispatch() {
    const message = { event: this.#event || "message", data: this.#data.join("\n"), id: this.#id };
    const isEmpty = this.#data.length === 0;
    this.#event = "";
    this.#data = [];
    this.#id = undefined;
    return isEmpty ? undefined : message;
  }
}

/**
 * Reads the events of a response, several at a time. Ends with the body; silence of `idleMs` counts as a broken
 * connection.
 */
export async function* readSse(response, idleMs, signal) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  const stop = () => reader.cancel().catch(() => undefined);
  signal.addEventListener("abort", stop);
  try {
    for (;;) {
      const { done, value } = await within(reader.read(), idleMs);
      if (done) return;
      const messages = parser.push(decoder.decode(value, { stream: true }));
      if (messages.length > 0) yield messages;
    }
  } catch (cause) {
    throw new NetworkError("The connection broke.", { cause });
  } finally {
    signal.removeEventListener("abort", stop);
    await stop();
  }
}

function within(promise, ms) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("silence")), ms);
  });
  return Promise.race([promise, silence]).finally(() => clearTimeout(timer));
}

/** Waits, unless `signal` ends it. */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/** How long to wait before attempt `n`, counted from 0: doubled each time, up to `most`, and never at the same time as others. */
export function backoff(n, most = 15_000) {
  return Math.min(most, 300 * 2 ** Math.min(n, 10)) * (0.8 + 0.4 * Math.random());
}
