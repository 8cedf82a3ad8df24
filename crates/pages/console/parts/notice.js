/** What a view says in place of, or above, its content: an error, that there is nothing, that it is loading. */

import { html } from "../lib/html.js";
import { describe } from "../lib/errors.js";

/** @param {{error: Error, again?: () => void}} props */
export function ErrorNotice({ error, again }) {
  const { title, text, advice, requestId } = describe(error);
  return html`<div class="notice notice-error" role="alert">
    <strong>${title}</strong>
    <p>${text}${advice === undefined ? "" : ` ${advice}`}</p>
    ${requestId !== undefined && html`<p class="quiet small">Request <code>${requestId}</code></p>`}
    ${again !== undefined && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

export function Loading({ what }) {
  return html`<p class="loading" role="status">Loading ${what} …</p>`;
}
