/** A modal dialog: the browser's own, which keeps the focus inside and closes with Escape. */

import { html, useEffect, useRef, useState } from "../lib/html.js";
import { ErrorNotice } from "./notice.js";

let dialogs = 0;

/** @param {{title: string, close: () => void, children: unknown}} props */
export function Dialog({ title, close, children }) {
  const dialog = useRef();
  const [id] = useState(() => `dialog-${(dialogs += 1)}`);
  useEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby=${id} onClose=${close}>
    <h2 id=${id}>${title}</h2>
    ${children}
  </dialog>`;
}

/**
 * A dialog with one action. With `typed`, the action is possible once that text was typed.
 * @param {{title: string, action: string, run: () => Promise<unknown>, close: () => void, danger?: boolean, typed?: string, children?: unknown, ready?: boolean}} props
 */
export function ActionDialog({ title, action, run, close, danger, typed, children, ready = true }) {
  const [state, setState] = useState({ text: "", busy: false, error: undefined });
  const possible = ready && !state.busy && (typed === undefined || state.text === typed);
  const submit = async (event) => {
    event.preventDefault();
    if (!possible) return;
    setState((old) => ({ ...old, busy: true, error: undefined }));
    try {
      await run();
      close();
    } catch (error) {
      setState((old) => ({ ...old, busy: false, error }));
    }
  };
  const type = (event) => setState((old) => ({ ...old, text: event.target.value }));
  return html`<${Dialog} title=${title} close=${close}>
    <form onSubmit=${submit}>
      ${children}
      ${typed !== undefined &&
      html`<label class="field"><span>Type <code>${typed}</code> to confirm</span>
        <input autocomplete="off" spellcheck=${false} value=${state.text} onInput=${type} />
      </label>`}
      ${state.error !== undefined && html`<${ErrorNotice} error=${state.error} />`}
      <div class="actions">
        <button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${!possible} aria-busy=${state.busy}>
          ${state.busy ? `${action} …` : action}
        </button>
      </div>
    </form>
  <//>`;
}
