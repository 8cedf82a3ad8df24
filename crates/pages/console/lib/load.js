/** Reading what a view shows. */

import { useCallback, useEffect, useRef, useState } from "./html.js";

/**
 * Calls `read` when the view appears, when one of `inputs` changes and whenever `again` is called. What was read before
 * stays until there is more.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} read
 */
export function useLoaded(read, inputs) {
  const [state, setState] = useState({ value: undefined, error: undefined });
  const running = useRef();
  const again = useCallback(async () => {
    running.current?.abort();
    const abort = new AbortController();
    running.current = abort;
    try {
      const value = await read(abort.signal);
      if (!abort.signal.aborted) setState({ value, error: undefined });
    } catch (error) {
      if (!abort.signal.aborted) setState((old) => ({ ...old, error }));
    }
  }, inputs);
  useEffect(() => {
    again();
    return () => running.current?.abort();
  }, [again]);
  return { ...state, again };
}
