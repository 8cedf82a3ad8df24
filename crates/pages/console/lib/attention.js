/** Whether somebody looks at the page. What only serves to be seen costs the service nothing while nobody does. */

/** A tab that was left for as long as this is not looked at again at once. */
const LEFT_MS = 300_000;

/**
 * Aborts when nobody has seen the page for a while. `release` ends the watch.
 * @param {AbortSignal} signal Aborts it, too.
 */
export function whileSeen(signal) {
  const left = new AbortController();
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => left.abort(), LEFT_MS);
  };
  document.addEventListener("visibilitychange", look);
  look();
  const release = () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
  return { signal: AbortSignal.any([signal, left.signal]), left: left.signal, release };
}

/** Waits until somebody sees the page, or `signal` aborts. */
export function seen(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}
