/** A call of a tool: its name and time, and, unfolded, its input and output. */

import { html, useState } from "../lib/html.js";
import { duration, plain } from "../lib/format.js";

/** More of an output is shown on demand. */
const SHOWN_CHARS = 4_000;

/**
 * A call that is `open` is unfolded while it runs.
 * @param {{tool: import("./turn.js").Tool, ended: boolean, open?: boolean, waits?: boolean, children?: unknown}} props
 */
export function ToolCard({ tool, ended, open = false, waits = false, children }) {
  const { tool: name, input, output, error, durationMs, hooks } = tool;
  const isDone = output !== undefined || error !== undefined;
  const state = error !== undefined ? "failed" : isDone ? "done" : ended ? "no result" : waits ? "waits for you" : "running";
  return html`<details class=${`tool tool-${state.replaceAll(" ", "-")}`} open=${open && !isDone}>
    <summary><span class="tool-name"><bdi>${plain(name)}</bdi></span>
      <span class="tool-input"><bdi>${plain(brief(input))}</bdi></span>
      <span class="small quiet tool-state">${state}${durationMs === undefined ? "" : ` · ${duration(durationMs)}`}</span>
    </summary>
    <p class="label">Input</p><${Code} label="Input" text=${JSON.stringify(input, null, 2) ?? ""} />
    ${output !== undefined && error === undefined && html`<p class="label">Output</p><${Code} label="Output" text=${output} />`}
    ${error !== undefined && html`<p class="label">Error</p><${Code} label="Error" text=${error} />`}
    ${hooks.map(
      (hook, index) => html`<p class="small" key=${index}>Hook <code>${plain(hook.hook)}</code> ${hook.decision === "refuse" ? "refused" : "changed"} it${hook.reason ? `: ${hook.reason}` : ""}</p>`,
    )}
    ${children}
  </details>`;
}

function brief(input) {
  const values = typeof input === "object" && input !== null ? Object.values(input) : [input];
  const texts = values.map((value) => (typeof value === "string" ? value : JSON.stringify(value)));
  const text = texts.join(" ").replace(/\s+/g, " ");
  return text.length > 80 ? `${text.slice(0, 79)}…` : text;
}

export function Code({ text, label }) {
  const [all, setAll] = useState(false);
  const isLong = text.length > SHOWN_CHARS && !all;
  return html`<pre class="code" tabindex="0" role="group" aria-label=${label}>${isLong ? `${text.slice(0, SHOWN_CHARS)}…` : text}</pre>
    ${isLong && html`<button type="button" class="small" onClick=${() => setAll(true)}>Show all</button>`}`;
}
