/** When a failed call is made again: pure decisions. */

import { ApiError, NetworkError, type RoundhouseError } from "./errors.js";

/** The longest pause between two attempts that the client chooses itself. */
const MAX_PAUSE_MS = 5_000;
const FIRST_PAUSE_MS = 250;
/** How much a pause is stretched at random, so that many clients do not come back at the same moment. */
const SPREAD = 0.25;
/** Refusals that pass by themselves. Others, such as `QUOTA_EXCEEDED` and `BOOT_TIMEOUT`, are final. */
const PASSING_CODES: ReadonlySet<string> = new Set([
  "RATE_LIMITED",
  "STARTING_UP",
  "CAPACITY_EXHAUSTED",
  "PORT_EXHAUSTION",
  "SHUTTING_DOWN",
  "QUIESCED",
  "OVERLOADED",
]);

/** Whether a call that is safe to repeat may succeed if it is repeated after this failure. */
export function isPassing(error: unknown, attempt: number): boolean {
  if (error instanceof NetworkError) return true;
  if (!(error instanceof ApiError) || error.code === undefined) return false;
  // The contract: retry it once at most.
  if (error.code === "BACKEND_ERROR") return attempt === 1;
  return PASSING_CODES.has(error.code);
}

/** How long to wait after the failed attempt number `attempt`, counted from 1. `random` is from 0 to 1. */
export function pauseMs(error: unknown, attempt: number, random: number): number {
  const suggested = (error as Partial<RoundhouseError>).retryAfter;
  const own = Math.min(FIRST_PAUSE_MS * 2 ** Math.min(attempt - 1, 10), MAX_PAUSE_MS);
  return suggested === undefined
    ? own * (1 - SPREAD * random)
    : suggested * 1_000 + Math.min(suggested * 1_000, FIRST_PAUSE_MS) * random;
}

/** The value of a `Retry-After` header in seconds: a number, or a date. */
export function parseRetryAfter(value: string | null, now: number): number | undefined {
  if (value === null || value.trim() === "") return undefined;
  if (/^\s*\d+(\.\d+)?\s*$/.test(value)) return Number(value);
  const date = Date.parse(value);
  return Number.isNaN(date) ? undefined : Math.max(0, (date - now) / 1_000);
}

/** Counts attempts until a deadline. */
export class Attempts {
  #attempt = 0;
  #deadline: number;
  readonly #budgetMs: number;

  constructor(budgetMs: number) {
    this.#budgetMs = budgetMs;
    this.#deadline = Date.now() + budgetMs;
  }

  get remainingMs(): number {
    return Math.max(0, this.#deadline - Date.now());
  }

  /** The count and the time begin anew, because there was progress. */
  reset(): void {
    this.#attempt = 0;
    this.#deadline = Date.now() + this.#budgetMs;
  }

  /** How long to wait before the next attempt; undefined if the failure is final or there is no time left. */
  pauseAfter(error: unknown): number | undefined {
    this.#attempt += 1;
    if (!isPassing(error, this.#attempt)) return undefined;
    const pause = pauseMs(error, this.#attempt, Math.random());
    return pause < this.remainingMs ? pause : undefined;
  }
}
