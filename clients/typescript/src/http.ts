/** Calls of one service: addresses and keys, deadlines, repetition, and errors as types. */

import { apiError, EngineNotRunningError, InvalidEngineKeyError } from "./error-codes.js";
import { DeadlineError, NetworkError, ProtocolError, RoundhouseError } from "./errors.js";
import { Attempts, parseRetryAfter } from "./retry.js";
import { abortReason, LinkedAbort, sleep, throwIfAborted } from "./time.js";

/** `fetch`, or what stands in for it. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** Where a service is, and what opens it. */
export interface Access {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
}

/** The present access to a service, and how to get another one when it does not hold any more. */
export interface AccessSource {
  current(): Access;
  /** Absent if there is no other one. `stale` is what did not work. */
  readonly renew?: (stale: Access, signal: AbortSignal | undefined) => Promise<Access>;
}

export interface HttpOptions {
  /** Used in place of the global `fetch`. */
  readonly fetch?: Fetch | undefined;
  /** How long one attempt of a call may take; 100 seconds by default. Streams may take longer. */
  readonly timeoutMs?: number | undefined;
  /** For how long a call that is safe to repeat is repeated; 60 seconds by default. */
  readonly retryMs?: number | undefined;
}

export type QueryValue = string | number | boolean | readonly string[] | null | undefined;
export type Query = Readonly<Record<string, QueryValue>>;

export interface Call {
  readonly method: string;
  /** The path, already encoded. */
  readonly path: string;
  readonly query?: Query | undefined;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  readonly body?: BodyInit | undefined;
  /** A body that is sent as JSON. */
  readonly json?: unknown;
  readonly signal?: AbortSignal | undefined;
  /** Whether a second call has no other effect than the first one. By default only reading. */
  readonly repeatable?: boolean | undefined;
  readonly timeoutMs?: number | undefined;
  readonly retryMs?: number | undefined;
}

const DEFAULT_TIMEOUT_MS = 100_000;
const DEFAULT_RETRY_MS = 60_000;
/** The most of an error's body that is read. */
const MAX_ERROR_LENGTH = 64 * 1024;
const READING: ReadonlySet<string> = new Set(["GET", "HEAD"]);

/** A client of one service. */
export class Http {
  readonly #access: AccessSource;
  readonly #fetch: Fetch;
  readonly #timeoutMs: number;
  readonly #retryMs: number;

  constructor(access: AccessSource, options: HttpOptions) {
    this.#access = access;
    this.#fetch = options.fetch ?? ((url, init) => globalThis.fetch(url, init));
    this.#timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
    this.#retryMs = options.retryMs ?? DEFAULT_RETRY_MS;
  }

  /** Makes a call whose answer is JSON. */
  async json<T>(call: Call): Promise<T> {
    return this.#repeat(call, async (response) => {
      const text = await response.text();
      try {
        return JSON.parse(text) as T;
      } catch (cause) {
        throw new ProtocolError(`${call.method} ${call.path}: the answer is not JSON`, {
          status: response.status,
          cause,
        });
      }
    });
  }

  /** Makes a call whose answer has no body that matters; returns its headers. */
  async headers(call: Call): Promise<Headers> {
    return this.#repeat(call, async (response) => {
      await response.body?.cancel();
      return response.headers;
    });
  }

  /** Makes a call whose answer's body the caller reads. The deadline holds until the body begins. */
  async stream(call: Call): Promise<Response> {
    return this.#repeat(call, (response) => Promise.resolve(response));
  }

  async #repeat<T>(call: Call, consume: (response: Response) => Promise<T>): Promise<T> {
    const repeatable = call.repeatable ?? READING.has(call.method);
    const attempts = new Attempts(call.retryMs ?? this.#retryMs);
    let renewed = false;
    for (;;) {
      throwIfAborted(call.signal);
      const access = this.#access.current();
      try {
        return await this.#attempt(access, call, consume);
      } catch (error) {
        throwIfAborted(call.signal);
        if (!renewed && this.#access.renew !== undefined && isStale(error)) {
          renewed = true;
          await this.#access.renew(access, call.signal);
          continue;
        }
        const pause = repeatable ? attempts.pauseAfter(error) : undefined;
        if (pause === undefined) throw error;
        await sleep(pause, call.signal);
      }
    }
  }

  async #attempt<T>(access: Access, call: Call, consume: (response: Response) => Promise<T>): Promise<T> {
    const abort = new LinkedAbort(call.signal);
    const timeoutMs = call.timeoutMs ?? this.#timeoutMs;
    const timer = setTimeout(() => {
      abort.abort(new DeadlineError(`no answer within ${(timeoutMs / 1_000).toString()} s`));
    }, timeoutMs);
    let streams = false;
    try {
      const response = await this.#fetch(access.url + call.path + queryString(call.query), {
        method: call.method,
        headers: {
          ...access.headers,
          ...(call.json === undefined ? {} : { "content-type": "application/json" }),
          ...call.headers,
        },
        signal: abort.signal,
        redirect: "manual",
        cache: "no-store",
        ...bodyOf(call),
      });
      if (!isSuccess(response.status)) throw await refusal(response, call.method);
      const result = await consume(response);
      // A body that is still read stays bound to the caller's signal.
      streams = result === response;
      return result;
    } catch (error) {
      if (error instanceof RoundhouseError) throw error;
      if (abort.signal.aborted) throw abortReason(abort.signal);
      throw new NetworkError(`${call.method} ${access.url}${call.path}: ${describe(error)}`, {
        sent: !isRefused(error),
        cause: error,
      });
    } finally {
      clearTimeout(timer);
      if (!streams) abort.release();
    }
  }
}

/** An engine's key was rotated, or it sleeps and nobody listens, or somebody else does at its address. */
function isStale(error: unknown): boolean {
  return (
    error instanceof InvalidEngineKeyError ||
    error instanceof EngineNotRunningError ||
    (error instanceof NetworkError && !error.sent)
  );
}

/** 304 is what a caller with a condition asked for. */
function isSuccess(status: number): boolean {
  return (status >= 200 && status < 300) || status === 304;
}

function bodyOf(call: Call): RequestInit {
  if (call.json !== undefined) return { body: JSON.stringify(call.json) };
  if (call.body === undefined) return {};
  // Required by the standard where a body is a stream; the types of browsers do not know it.
  return call.body instanceof ReadableStream
    ? ({ body: call.body, duplex: "half" } as RequestInit)
    : { body: call.body };
}

/** The query of an address: what is null or undefined is left out, lists are joined by commas. */
export function queryString(query: Query | undefined): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === null || value === undefined) continue;
    parameters.set(name, typeof value === "object" ? value.join(",") : String(value));
  }
  const text = parameters.toString();
  return text === "" ? "" : `?${text}`;
}

async function refusal(response: Response, method: string): Promise<RoundhouseError> {
  const text = method === "HEAD" ? "" : (await response.text()).slice(0, MAX_ERROR_LENGTH);
  const details = {
    retryAfter: parseRetryAfter(response.headers.get("retry-after"), Date.now()),
    requestId: response.headers.get("x-request-id") ?? undefined,
  };
  const envelope = parseEnvelope(text);
  if (envelope !== undefined)
    return apiError(response.status, envelope.message, { ...details, code: envelope.code });
  if (method === "HEAD") return apiError(response.status, `status ${response.status.toString()}`, details);
  return new ProtocolError(
    `status ${response.status.toString()} with a body that is no error of the service`,
    {
      ...details,
      status: response.status,
    },
  );
}

/** The code and the message of an error: nested as everywhere, or flat as in the answers of `/rpc`. */
function parseEnvelope(text: string): { code: string; message: string } | undefined {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return undefined;
  }
  const outer = asRecord(body);
  const inner = asRecord(outer?.["error"]);
  const code = inner === undefined ? outer?.["error"] : inner["code"];
  const message = (inner ?? outer)?.["message"];
  return typeof code === "string" && typeof message === "string" ? { code, message } : undefined;
}

export function asRecord(value: unknown): Record<string, unknown> | undefined {
  return typeof value === "object" && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : undefined;
}

/** Whether a failure of `fetch` says that no connection was made. Browsers do not tell; then it is unknown. */
function isRefused(error: unknown): boolean {
  for (const link of causes(error)) {
    const code = asRecord(link)?.["code"];
    // Node, Bun.
    if (code === "ECONNREFUSED" || code === "ConnectionRefused") return true;
    // Deno.
    if (link instanceof Error && /connection refused|actively refused/i.test(link.message)) return true;
  }
  return false;
}

function* causes(error: unknown): Generator {
  for (let link = error, depth = 0; link !== undefined && link !== null && depth < 5; depth += 1) {
    yield link;
    link = (link as { cause?: unknown }).cause;
  }
}

function describe(error: unknown): string {
  const messages = [...causes(error)].map((link) => (link instanceof Error ? link.message : String(link)));
  return messages.filter((message) => message !== "").join(": ");
}
