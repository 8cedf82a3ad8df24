/** What can be done about the last answer: have it repeated, rate it, say what would have been right. */

import { html, useState } from "../lib/html.js";
import { ErrorNotice } from "../parts/notice.js";

/** What a correction may have, in bytes of UTF-8. */
const MAX_BYTES = 8_192;

export function After({ conversation, retry }) {
  const [rated, setRated] = useState();
  const [correcting, setCorrecting] = useState(false);
  const [said, setSaid] = useState("");
  const [error, setError] = useState();
  const attempt = (action) => action.then(() => setError(undefined), setError);
  const rate = (rating) =>
    attempt(
      conversation.rate(rating).then(() => {
        setRated(rating);
        setSaid("Thank you; the engine learns from it.");
      }),
    );
  const correct = (text) =>
    attempt(
      conversation.correct(text).then(() => {
        setCorrecting(false);
        setSaid("Thank you; the next turn knows it.");
      }),
    );
  return html`<div class="after">
    <button type="button" class="small" onClick=${() => attempt(retry())}>Retry</button>
    <button type="button" class="small" aria-pressed=${rated === 5} onClick=${() => rate(5)}>Good</button>
    <button type="button" class="small" aria-pressed=${rated === 1} onClick=${() => rate(1)}>Bad</button>
    <button type="button" class="small" aria-expanded=${correcting} onClick=${() => setCorrecting(!correcting)}>Correct</button>
    ${said !== "" && html`<span class="quiet small" role="status">${said}</span>`}
    ${correcting && html`<${Correction} correct=${correct} close=${() => setCorrecting(false)} />`}
    ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
  </div>`;
}

function Correction({ correct, close }) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const isLong = new TextEncoder().encode(text).length > MAX_BYTES;
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    await correct(text.trim());
    setBusy(false);
  };
  return html`<form class="correction" onSubmit=${submit}>
    <label class="field"><span>What would have been right?</span>
      <textarea rows="3" aria-invalid=${isLong} value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    ${isLong && html`<p role="alert">A correction has at most 8 KiB: say only what was wrong.</p>`}
    <p class="small quiet">It is in force from the next turn on, in all conversations of this user.</p>
    <div class="actions"><button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class="primary" disabled=${busy || isLong || text.trim() === ""}>Send</button></div>
  </form>`;
}
