/** Server-Sent Events: a parser that takes text in any pieces, and a reader of a response's body. */

import { NetworkError, ProtocolError } from "./errors.js";
import { abortReason } from "./time.js";

/** The size of the largest event that is accepted, in characters: more than any event of an engine. */
const MAX_EVENT_LENGTH = 128 * 1024 * 1024;

/** An event as it was sent. */
export interface SseMessage {
  /** The type; `message` if there was no `event:` line. */
  readonly event: string;
  /** The data; several lines are joined by line feeds. */
  readonly data: string;
  /** The value of this event's own `id:` line, if it has one. */
  readonly id?: string;
}

/** Parses a stream as the HTML standard describes. An event that is cut off at the end is dropped. */
export class SseParser {
  /** The pieces of the line that is not complete yet. */
  #pieces: string[] = [];
  #length = 0;
  #afterCarriageReturn = false;
  #atStart = true;
  #event = "";
  #data: string[] = [];
  #id: string | undefined;

  /** Takes the next piece and returns the events that it completes. */
  push(piece: string): SseMessage[] {
    const messages: SseMessage[] = [];
    let start = 0;
    if (this.#atStart && piece !== "") {
      this.#atStart = false;
      if (piece.startsWith("\uFEFF")) start = 1;
    }
    if (this.#afterCarriageReturn && start < piece.length) {
      // CR LF is one end of a line, also where the two arrive apart.
      this.#afterCarriageReturn = false;
      if (piece[start] === "\n") start += 1;
    }
    const lineEnd = /\r\n|\r|\n/g;
    lineEnd.lastIndex = start;
    for (let match = lineEnd.exec(piece); match !== null; match = lineEnd.exec(piece)) {
      const message = this.#takeLine(this.#completeLine(piece.slice(start, match.index)));
      if (message !== undefined) messages.push(message);
      start = lineEnd.lastIndex;
      this.#afterCarriageReturn = match[0] === "\r" && start === piece.length;
    }
    this.#keep(piece.slice(start));
    return messages;
  }

  #completeLine(end: string): string {
    this.#keep(end);
    const line = this.#pieces.join("");
    this.#pieces = [];
    return line;
  }

  #keep(piece: string): void {
    if (piece === "") return;
    this.#pieces.push(piece);
    this.#length += piece.length;
    if (this.#length > MAX_EVENT_LENGTH) {
      throw new ProtocolError(`an event is longer than ${MAX_EVENT_LENGTH.toString()} characters`);
    }
  }

  #takeLine(line: string): SseMessage | undefined {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return undefined; // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    const raw = colon < 0 ? "" : line.slice(colon + 1);
    const value = raw.startsWith(" ") ? raw.slice(1) : raw;
    if (field === "event") this.#event = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return undefined;
  }

  #dispatch(): SseMessage | undefined {
    const [event, data, id] = [this.#event, this.#data, this.#id];
    this.#event = "";
    this.#data = [];
    this.#id = undefined;
    this.#length = 0;
    if (data.length === 0) return undefined;
    const message = { event: event === "" ? "message" : event, data: data.join("\n") };
    return id === undefined ? message : { ...message, id };
  }
}

/**
 * Reads the events of a response. Ends with the body; a connection that breaks, or on which nothing arrives for
 * `idleMs`, is a `NetworkError`.
 */
export async function* readSse(
  response: Response,
  idleMs: number,
  signal: AbortSignal,
): AsyncGenerator<SseMessage[], void> {
  const reader = response.body?.getReader();
  if (reader === undefined) throw new ProtocolError("the response has no body");
  const decoder = new TextDecoder();
  const parser = new SseParser();
  try {
    for (;;) {
      const { done, value } = await readWithin(reader, idleMs, signal);
      if (done) return;
      const messages = parser.push(decoder.decode(value, { stream: true }));
      if (messages.length > 0) yield messages;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

type Chunk =
  { readonly done: true; readonly value?: undefined } | { readonly done: false; readonly value: Uint8Array };

/** The next part of a body, or why there is none. */
export async function readWithin(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  idleMs: number,
  signal: AbortSignal | undefined,
): Promise<Chunk> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new NetworkError(`nothing arrived for ${(idleMs / 1_000).toString()} s`, { sent: true }));
    }, idleMs);
  });
  try {
    const { done, value } = await Promise.race([reader.read(), silence]);
    return done ? { done: true } : { done: false, value };
  } catch (error) {
    if (signal?.aborted) throw abortReason(signal);
    if (error instanceof NetworkError) throw error;
    throw new NetworkError("the connection broke", { sent: true, cause: error });
  } finally {
    clearTimeout(timer);
  }
}
