/** Descriptions: paragraphs with code between backticks. */

import { html } from "../lib/html.js";

export function Text({ text }) {
  if (!text) return null;
  return text.split(/\n\s*\n/).map((paragraph) => html`<p><${Line} text=${paragraph} /></p>`);
}

/** A line of text. */
export function Line({ text }) {
  return text.split("`").map((piece, at) => (at % 2 === 1 ? html`<code>${piece}</code>` : piece));
}
