/** State that views share: a value with listeners. */

import { useEffect, useState } from "./html.js";

/** @template T */
export class Store {
  #listeners = new Set();

  /** @param {T} value */
  constructor(value) {
    this.value = value;
  }

  /** Replaces the value, and tells whoever listens. */
  set(value) {
    if (value === this.value) return;
    this.value = value;
    for (const listener of [...this.#listeners]) listener();
  }

  /** Replaces fields of the value. */
  patch(fields) {
    this.set({ ...this.value, ...fields });
  }

  /** Calls `listener` after each change, until the function that is returned is called. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** The value of a store; the component is drawn again when it changes. */
export function useStore(store) {
  const [, redraw] = useState(0);
  useEffect(() => {
    const changed = () => redraw((count) => count + 1);
    // It may have changed between the drawing and now.
    changed();
    return store.listen(changed);
  }, [store]);
  return store.value;
}
