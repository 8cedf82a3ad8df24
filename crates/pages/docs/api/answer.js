/** The answer to a call: status, headers, and the body while it comes. */

import { html } from "../lib/html.js";

/** How much of a body is shown; more of it is read only to be saved. */
const SHOWN = 200_000;
/** How large a body may be that is kept to be saved. */
const KEPT = 20_000_000;
const TEXT = /^(text\/|application\/(json|[\w.+-]*\+json|openmetrics-text|yaml))/;

/**
 * Sends a request. Calls `show` with what there is of the answer, again and again.
 * @param {(answer: object) => void} show
 */
export async function read(url, init, show) {
  const began = performance.now();
  const answer = { open: true, text: "", bytes: 0 };
  const update = (fields) => show({ ...Object.assign(answer, fields), ms: Math.round(performance.now() - began) });
  update({});
  try {
    const response = await fetch(url, { ...init, credentials: "omit", cache: "no-store", redirect: "error" });
    const type = response.headers.get("content-type") ?? "";
    update({ status: response.status, statusText: response.statusText, headers: [...response.headers], type });
    await readBody(response, type, answer, update);
    update({ open: false });
  } catch (error) {
    const stopped = init.signal.aborted;
    update({ open: false, failure: stopped ? "Stopped." : `There is no answer, or it broke off: ${error.message}` });
  }
}

async function readBody(response, type, answer, update) {
  if (response.body === null) return;
  const isText = TEXT.test(type);
  const decoder = new TextDecoder();
  const pieces = [];
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const bytes = answer.bytes + value.length;
    if (bytes <= KEPT) pieces.push(value);
    const text = isText && answer.text.length < SHOWN ? answer.text + decoder.decode(value, { stream: true }) : answer.text;
    update({ bytes, text: text.slice(0, SHOWN) });
  }
  if (/^application\/([\w.+-]*\+)?json/.test(type)) update({ text: pretty(answer.text) });
  if (!isText && answer.bytes > 0 && answer.bytes <= KEPT) update({ file: URL.createObjectURL(new Blob(pieces, { type })) });
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export function Answer({ open, status, statusText, headers, type, text, bytes, ms, file, failure }) {
  const state = status === undefined ? (open ? "Waiting …" : "") : `${status} ${statusText}`.trim();
  return html`<div class="answer">
    <h4>The answer</h4>
    <p role="status">${state !== "" && html`<strong class=${status < 400 ? "good" : "bad"}>${state}</strong> `}
      ${failure ?? ""}${status !== undefined && ` ${ms} ms, ${bytes} bytes${open ? ", and more to come" : ""}`}</p>
    ${headers !== undefined &&
    html`<details><summary>Headers</summary>
      <pre tabindex="0">${headers.map(([name, value]) => `${name}: ${value}`).join("\n")}</pre>
    </details>`}
    ${text !== "" && text !== undefined && html`<pre tabindex="0" class="body">${text}${text.length >= SHOWN ? "\n… (more is not shown)" : ""}</pre>`}
    ${file !== undefined && html`<p><a href=${file} download="answer">Save the body</a> (${type})</p>`}
  </div>`;
}
