/** The end of an engine's log, read again every few seconds while it is looked at. */

import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { get, path } from "../lib/api.js";
import { counted } from "../lib/format.js";
import { sleep } from "../lib/sse.js";
import { ErrorNotice } from "./notice.js";

const EVERY_MS = 2_000;
const LINES = 300;

export function EngineLog({ user, running }) {
  const [state, setState] = useState({ lines: undefined, error: undefined });
  const [following, setFollowing] = useState(true);
  const box = useRef();
  useEffect(() => {
    const abort = new AbortController();
    const follow = async () => {
      while (!abort.signal.aborted) {
        if (!document.hidden) await read(abort.signal);
        await sleep(running ? EVERY_MS : EVERY_MS * 5, abort.signal);
      }
    };
    const read = async (signal) => {
      try {
        const { lines } = await get(path`/engines/${user}/logs`, { query: { tail: LINES }, signal });
        setState((old) => (same(old.lines, lines) ? old : { lines, error: undefined }));
      } catch (error) {
        if (!signal.aborted) setState((old) => ({ ...old, error }));
      }
    };
    if (following) follow();
    return () => abort.abort();
  }, [user, running, following]);
  useLayoutEffect(() => {
    if (following && box.current !== undefined && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [state.lines, following]);
  const { lines, error } = state;
  return html`<section class="card whole" aria-labelledby="log">
    <div class="head"><h2 id="log">Log</h2>
      <label class="inline small"><input type="checkbox" checked=${following} onChange=${() => setFollowing(!following)} />Follow</label>
    </div>
    ${error !== undefined && html`<${ErrorNotice} error=${error} />`}
    ${lines !== undefined &&
    html`<pre class="log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label=${`The last ${counted(lines.length, "line")}`}>${lines.length === 0 ? "The log is empty." : lines.join("\n")}</pre>`}
  </section>`;
}

function same(a, b) {
  return a !== undefined && a.length === b.length && a.at(-1) === b.at(-1) && a[0] === b[0];
}
