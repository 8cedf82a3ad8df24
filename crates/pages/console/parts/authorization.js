/** What a connection says while its user authorises it in another window, and what to do if that did not work. */

import { html, useState } from "../lib/html.js";
import { LIFETIME_MS, finish, forget, parametersOf } from "../lib/authorization.js";
import { plain } from "../lib/format.js";
import { Time } from "./time.js";

/** @param {{known: import("../lib/authorization.js").Authorization}} props */
export function Waiting({ known }) {
  const { server, state, url, begunAt, phase, error } = known;
  if (phase === "failed") {
    return html`<div class="notice notice-error" role="alert"><strong>${plain(error.title)}</strong>
      <p>${plain(error.text)}</p>${error.advice !== undefined && html`<p>${error.advice}</p>`}
      <button type="button" class="small" aria-label=${`Hide what failed with ${plain(server)}`} onClick=${() => forget(state)}>Hide</button></div>`;
  }
  if (phase === "finishing") return html`<p class="live live-reconnecting" role="status">finishes the authorisation</p>`;
  return html`<div class="notice">
    <p class="live live-reconnecting" role="status">waits for the authorisation in the other window</p>
    <p>No window, or you have closed it? <a href=${url} target="_blank" rel="noopener noreferrer"
        aria-label=${`Open the authorisation page of ${plain(server)}`}>Open the authorisation page</a>.
      It expires <${Time} at=${new Date(begunAt + LIFETIME_MS).toISOString()} />.</p>
    <${ByHand} known=${known} />
    <button type="button" class="small" aria-label=${`Stop waiting for ${plain(server)}`} onClick=${() => forget(state)}>Stop waiting</button>
  </div>`;
}

/** For a browser that cannot come back: the address of its window has all that the engine wants to know. */
function ByHand({ known }) {
  const [text, setText] = useState("");
  const [wrong, setWrong] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const parameters = read(text.trim());
    if (parameters?.state !== known.state || (parameters.code === undefined && parameters.error === undefined)) {
      setWrong("This is not the address that this authorisation ends at. Copy all of it, after you have allowed the access.");
      return;
    }
    // What fails is shown in place of this form.
    finish(known, parameters).catch(() => undefined);
  };
  return html`<details><summary>The window ends at a page that cannot be reached</summary>
    <form onSubmit=${submit}>
      <label class="field"><span>Its whole address</span>
        <input type="text" inputmode="url" autocomplete="off" spellcheck=${false} value=${text} aria-invalid=${wrong !== ""}
          onInput=${(event) => (setText(event.target.value), setWrong(""))} /></label>
      ${wrong !== "" && html`<p role="alert">${wrong}</p>`}
      <button type="submit" class="small" disabled=${text.trim() === ""}>Finish</button>
    </form></details>`;
}

function read(address) {
  try {
    return parametersOf(new URL(address).searchParams);
  } catch {
    return undefined;
  }
}
