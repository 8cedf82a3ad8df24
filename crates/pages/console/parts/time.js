/** A time: relative to now, with the exact one on hover and for machines. */

import { html } from "../lib/html.js";
import { exact, relative } from "../lib/format.js";
import { Store, useStore } from "../lib/store.js";

/** Ticks, so that relative times stay right. */
const now = new Store(Date.now());
setInterval(() => {
  if (!document.hidden) now.set(Date.now());
}, 10_000);

/** @param {{at: string | number | null | undefined, never?: string}} props */
export function Time({ at, never = "never" }) {
  useStore(now);
  const ms = typeof at === "string" ? Date.parse(at) : at;
  if (typeof ms !== "number" || !Number.isFinite(ms)) return html`<span class="quiet">${never}</span>`;
  return html`<time dateTime=${new Date(ms).toISOString()} title=${exact(ms)}>${relative(ms)}</time>`;
}
