/** Short messages about what was done, which screen readers say too. */

import { html } from "../lib/html.js";
import { Store, useStore } from "../lib/store.js";

const SHOWN_MS = 6_000;
const toasts = new Store([]);
let last = 0;

export function toast(text) {
  const id = (last += 1);
  toasts.set([...toasts.value.slice(-3), { id, text }]);
  setTimeout(() => toasts.set(toasts.value.filter((shown) => shown.id !== id)), SHOWN_MS);
}

export function Toasts() {
  const shown = useStore(toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.map(({ id, text }) => html`<div class="toast" key=${id}>${text}</div>`)}
  </div>`;
}
