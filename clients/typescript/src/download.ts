/** A file that is read over as many connections as it takes. */

import { NetworkError, ProtocolError } from "./errors.js";
import type { Call, Http } from "./http.js";
import { Attempts } from "./retry.js";
import { readWithin } from "./sse.js";
import { LinkedAbort, sleep } from "./time.js";

export interface DownloadOptions {
  /** Begin with this byte, to continue an earlier download. */
  readonly offset?: number | undefined;
  /** Only this version of the file: another one is a `PreconditionFailedError`. */
  readonly etag?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** For how long a lost connection is tried again; 2 minutes by default. */
  readonly reconnectMs?: number | undefined;
}

const DEFAULT_RECONNECT_MS = 120_000;
/** After how long without a byte a connection counts as lost. */
const IDLE_MS = 60_000;

/**
 * A download that has begun. Iterate over it, or take all of it with `bytes()` or `text()`, once.
 *
 * If the connection breaks it continues where it was, as long as the file is the same.
 */
export class Download implements AsyncIterable<Uint8Array> {
  readonly etag: string | undefined;
  readonly contentType: string | undefined;
  /** The size of the whole file; undefined for what is made while it is sent. */
  readonly size: number | undefined;
  /** How many bytes of the file were read, with those before the `offset`. */
  #offset: number;
  #response: Response | undefined;
  readonly #http: Http;
  readonly #call: Call;
  readonly #options: DownloadOptions;
  readonly #abort: LinkedAbort;

  private constructor(
    http: Http,
    call: Call,
    options: DownloadOptions,
    abort: LinkedAbort,
    response: Response,
  ) {
    this.#http = http;
    this.#call = call;
    this.#abort = abort;
    this.#options = options;
    this.#response = response;
    this.#offset = options.offset ?? 0;
    this.etag = response.headers.get("etag") ?? undefined;
    this.contentType = response.headers.get("content-type") ?? undefined;
    this.size = sizeOf(response);
  }

  static async open(
    http: Http,
    path: string,
    query: Call["query"],
    options: DownloadOptions,
  ): Promise<Download> {
    const abort = new LinkedAbort(options.signal);
    const call = { method: "GET", path, query, signal: abort.signal };
    const headers = rangeHeaders(options.offset ?? 0, options.etag);
    try {
      return new Download(http, call, options, abort, await http.stream({ ...call, headers }));
    } catch (error) {
      abort.release();
      throw error;
    }
  }

  /** How many bytes of the file were read: the `offset` with which to continue. */
  get offset(): number {
    return this.#offset;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    const response = this.#response;
    if (response === undefined) throw new TypeError("this download was read already");
    this.#response = undefined;
    try {
      yield* this.#read(response);
    } finally {
      this.#abort.release();
    }
  }

  async *#read(first: Response): AsyncGenerator<Uint8Array, void, undefined> {
    let response = first;
    const attempts = new Attempts(this.#options.reconnectMs ?? DEFAULT_RECONNECT_MS);
    for (;;) {
      try {
        for await (const chunk of this.#chunks(response)) {
          attempts.reset();
          this.#offset += chunk.byteLength;
          yield chunk;
        }
        return;
      } catch (error) {
        // What is made while it is sent has no tag: it cannot be continued.
        const pause = this.etag !== undefined && isBreak(error) ? attempts.pauseAfter(error) : undefined;
        if (pause === undefined) throw error;
        await sleep(pause, this.#options.signal);
      }
      if (this.#offset === this.size) return;
      const headers = rangeHeaders(this.#offset, this.etag);
      response = await this.#http.stream({ ...this.#call, headers });
      if (this.#offset > 0 && response.status !== 206)
        throw new ProtocolError("the service sent another range");
    }
  }

  /** All of it, in memory. */
  async bytes(): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    let length = 0;
    for await (const chunk of this) {
      chunks.push(chunk);
      length += chunk.byteLength;
    }
    const whole = new Uint8Array(length);
    let at = 0;
    for (const chunk of chunks) {
      whole.set(chunk, at);
      at += chunk.byteLength;
    }
    return whole;
  }

  /** All of it as UTF-8. */
  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes());
  }

  /** It as a stream, for APIs that take one. */
  stream(): ReadableStream<Uint8Array> {
    const chunks = this[Symbol.asyncIterator]();
    return new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        const { done, value } = await chunks.next();
        if (done === true) controller.close();
        else controller.enqueue(value);
      },
      cancel: async () => {
        await chunks.return(undefined);
      },
    });
  }

  async *#chunks(response: Response): AsyncGenerator<Uint8Array, void> {
    const reader = response.body?.getReader();
    if (reader === undefined) return;
    try {
      for (;;) {
        const { done, value } = await readWithin(reader, IDLE_MS, this.#options.signal);
        if (done) break;
        yield value;
      }
      if (this.size !== undefined && this.#offset < this.size) {
        throw new NetworkError("the connection broke", { sent: true });
      }
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  }
}

function isBreak(error: unknown): boolean {
  return error instanceof NetworkError;
}

/** The rest of the file from a byte on, of exactly this version. */
function rangeHeaders(offset: number, etag: string | undefined): Record<string, string> {
  return {
    ...(offset > 0 ? { range: `bytes=${offset.toString()}-` } : {}),
    ...(etag === undefined ? {} : { "if-match": etag }),
  };
}

function sizeOf(response: Response): number | undefined {
  const range = /\/(\d+)$/.exec(response.headers.get("content-range") ?? "");
  if (range?.[1] !== undefined) return Number(range[1]);
  const length = response.headers.get("content-length");
  return length === null || response.headers.has("content-encoding") ? undefined : Number(length);
}
