/** Calls of the API with the session's key. */

import { address } from "./base.js";
import { ApiError, NetworkError, errorOf } from "./errors.js";
import { keyHeaders, session, signOut } from "./session.js";

const READ_MS = 30_000;
/** A boot may take a minute, and a stop has half a minute of grace. */
const CHANGE_MS = 150_000;

/** Codes of a key that is not accepted any more. */
const KEY_REFUSED = new Set(["INVALID_PLATFORM_KEY", "INVALID_ADMIN_KEY"]);

/** A path with its variable parts encoded: path`/engines/${user}/stop`. */
export function path(texts, ...values) {
  return String.raw({ raw: texts }, ...values.map(segment));
}

function segment(value) {
  if (value === "." || value === "..") {
    // However it is encoded, browsers resolve it as a folder: the call would be another one.
    throw new NetworkError(`No browser can call an address with the name \`${value}\` in it; use the command line.`);
  }
  return encodeURIComponent(value);
}

/** A random id for a call or a message. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Sends a request and returns its response, which is a success.
 * @param {string} method
 * @param {string} path
 * @param {{query?: object, json?: unknown, body?: BodyInit, headers?: object, signal?: AbortSignal, as?: object}} options
 */
export async function request(method, path, { query, json, body, headers, signal, as } = {}) {
  const sender = as ?? session.value;
  if (sender === undefined) throw new NetworkError("Nobody is signed in.");
  const all = { ...keyHeaders(sender), ...headers };
  if (json !== undefined) all["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path, query), {
      method,
      headers: all,
      body: json === undefined ? body : JSON.stringify(json),
      signal,
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
    });
  } catch (cause) {
    throw failure(cause, signal);
  }
  if (response.ok) return response;
  const error = await errorOf(response);
  if (as === undefined && KEY_REFUSED.has(error.code) && sender === session.value) {
    signOut("The key is not accepted any more. Sign in with one that is in force.");
  }
  throw error;
}

async function json(method, path, options, limitMs) {
  const limit = AbortSignal.timeout(limitMs);
  const signal = options?.signal === undefined ? limit : AbortSignal.any([limit, options.signal]);
  const response = await request(method, path, { ...options, signal });
  if (response.status === 204) return undefined;
  try {
    return await response.json();
  } catch (cause) {
    throw failure(cause, signal);
  }
}

/** Reads. */
export function get(path, options) {
  return json("GET", path, options, READ_MS);
}

/** Changes something. The call has a key, so whatever repeats it on the way repeats nothing. */
export function change(method, path, options) {
  const headers = { "Idempotency-Key": randomId(), ...options?.headers };
  return json(method, path, { ...options, headers }, CHANGE_MS);
}

/** Calls the engine of a user through the orchestrator. `rest` is the engine's own path. */
export function engine(user) {
  const below = (rest) => path`/engines/${user}/proxy` + rest;
  return {
    get: (rest, options) => get(below(rest), options),
    send: (method, rest, options) => json(method, below(rest), options, CHANGE_MS),
    request: (method, rest, options) => request(method, below(rest), options),
  };
}

function failure(cause, signal) {
  if (cause instanceof ApiError) return cause;
  if (signal?.aborted && signal.reason?.name === "TimeoutError") {
    return new NetworkError("The orchestrator has not answered in time.", { cause });
  }
  if (signal?.aborted) return cause;
  return new NetworkError("The orchestrator cannot be reached.", { cause });
}
