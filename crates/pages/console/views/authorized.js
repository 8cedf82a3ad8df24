/**
 * Where a browser comes back from an authorization server. This window has no key: the tab in which the authorisation was
 * begun finishes it.
 */

import { html, useEffect, useState } from "../lib/html.js";
import { plain } from "../lib/format.js";
import { route } from "../lib/router.js";
import { Mark } from "../parts/frame.js";

/** A tab that waits says so at once, unless it was put to sleep. */
const ANSWER_MS = 3_000;
/** Long enough to be read. */
const CLOSES_MS = 1_500;

export default function Authorized() {
  const [state, setState] = useState({ phase: "asking" });
  useEffect(() => {
    // The code stays in no history.
    const parameters = Object.fromEntries(route.value.query);
    history.replaceState(undefined, "", "#/authorized");
    if (parameters.state === undefined) {
      setState({ phase: "empty" });
      return undefined;
    }
    const channel = new BroadcastChannel("roundhouse.authorization");
    let timer = setTimeout(() => setState({ phase: "alone" }), ANSWER_MS);
    channel.onmessage = ({ data }) => {
      if (data.state !== parameters.state) return;
      clearTimeout(timer);
      setState(data.kind === "taken" ? { phase: "finishing" } : { phase: "ended", ...data });
      if (data.kind === "ended" && data.error === undefined) timer = setTimeout(() => close(), CLOSES_MS);
    };
    channel.postMessage({ kind: "came-back", parameters });
    return () => {
      clearTimeout(timer);
      channel.close();
    };
  }, []);
  return html`<main class="narrow sign-in"><h1><${Mark} />Authorisation</h1><${Words} ...${state} /></main>`;
}

function Words({ phase, server, error }) {
  switch (phase) {
    case "asking":
    case "finishing":
      return html`<p role="status">Finishing …</p>`;
    case "ended":
      return error === undefined
        ? html`<p role="status"><strong>Connected ${plain(server)}.</strong> You can close this window.</p>`
        : html`<div class="notice notice-error" role="alert"><strong>Not connected: ${plain(error.title)}</strong><p>${plain(error.text)}</p></div>
            <p>You can close this window, and connect again in the console.</p>`;
    case "alone":
      return html`<div class="notice notice-error" role="alert"><strong>No open console waits for this</strong>
        <p>The tab in which you chose <em>Connect</em> was closed, or is of another browser. Nothing is connected: open the
          console, and connect again.</p></div>`;
    default:
      return html`<p>There is nothing to finish here. Connect a server in the console.</p>`;
  }
}
