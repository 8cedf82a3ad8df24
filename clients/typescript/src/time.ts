/** Waiting, and signals that end it. */

/** Waits; rejects with the signal's reason as soon as it is aborted. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(abortReason(signal));
      return;
    }
    const aborted = (): void => {
      clearTimeout(timer);
      reject(abortReason(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** Waits for a promise that others wait for too; rejects with the signal's reason as soon as it is aborted. */
export async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  throwIfAborted(signal);
  let aborted = (): void => undefined;
  const abortion = new Promise<never>((_, reject) => {
    aborted = (): void => {
      reject(abortReason(signal));
    };
    signal.addEventListener("abort", aborted, { once: true });
  });
  try {
    return await Promise.race([promise, abortion]);
  } finally {
    signal.removeEventListener("abort", aborted);
  }
}

export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw abortReason(signal);
}

/** Why a signal was aborted, as an error. */
export function abortReason(signal: AbortSignal | undefined): Error {
  const reason: unknown = signal?.reason;
  return reason instanceof Error ? reason : new DOMException("The operation was aborted", "AbortError");
}

/** A controller that is aborted with its parent, until it is released. */
export class LinkedAbort {
  readonly #controller = new AbortController();
  readonly #parent: AbortSignal | undefined;
  readonly #follow = (): void => {
    this.#controller.abort(abortReason(this.#parent));
  };

  constructor(parent: AbortSignal | undefined) {
    this.#parent = parent;
    if (parent?.aborted) this.#follow();
    parent?.addEventListener("abort", this.#follow, { once: true });
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  abort(reason: Error): void {
    this.#controller.abort(reason);
  }

  /** Stops following the parent, so that a parent that lives long does not keep this alive. */
  release(): void {
    this.#parent?.removeEventListener("abort", this.#follow);
  }
}
