/** A user's connections to tool servers. */

import { html, useEffect, useState } from "../lib/html.js";
import { engine, path } from "../lib/api.js";
import { authorizations, begin, endOf, fail, forget } from "../lib/authorization.js";
import { counted, plain } from "../lib/format.js";
import { useLoaded } from "../lib/load.js";
import { useStore } from "../lib/store.js";
import { ActionDialog } from "./dialog.js";
import { ErrorNotice } from "./notice.js";
import { toast } from "./toast.js";
import { Waiting } from "./authorization.js";

/** While somebody authorises in another window, this asks whether it is done. */
const EVERY_MS = 2_000;
/** What a connection that has ended otherwise says. */
const ENDS = {
  gone: new Error("The server was not connected: access was denied, or the authorisation failed. Connect again to try it anew."),
  expired: new Error("The authorisation was not finished within ten minutes, and has expired. Connect again."),
};

export function Connections({ user }) {
  const read = async (signal) => {
    const readAt = Date.now();
    const [{ servers }, { connections }] = await Promise.all([
      engine(user).get("/assets/servers", { signal }),
      engine(user).get("/assets/connections", { signal }),
    ]);
    return { servers, connections, readAt };
  };
  const { value, error, again } = useLoaded(read, [user]);
  const begun = useStore(authorizations).filter((known) => known.user === user);
  const [removing, setRemoving] = useState();
  const [asking, setAsking] = useState();
  const [failure, setFailure] = useState();
  useAuthorizations(begun, value, again);
  const connect = async (json) => {
    setFailure(undefined);
    const outcome = await engine(user).send("POST", "/assets/connect", { json });
    if (outcome.status === "authorization_required") {
      begin(user, json.server, outcome);
      // It does not know who has opened it. A browser that opens no window shows nothing: the link is there in any case.
      window.open(outcome.authorization_url, "_blank", "noopener,noreferrer");
    } else {
      toast(`Connected ${plain(json.server)}`);
    }
    await again();
  };
  const start = (server) => (server.auth === "api_key" ? setAsking(server) : connect({ server: server.name }).catch(setFailure));
  const remove = async () => {
    await engine(user).send("DELETE", path`/assets/connections/${removing.connection}`);
    for (const known of begun) if (known.server === removing.server) forget(known.state);
    toast("Disconnected");
    again();
  };
  const { servers = [], connections = [] } = value ?? {};
  return html`<section class="card" aria-labelledby="connections"><h2 id="connections">Connections</h2>
    ${(failure ?? error) !== undefined && html`<${ErrorNotice} error=${failure ?? error} again=${again} />`}
    ${value !== undefined && servers.length === 0 && html`<p class="quiet">The catalog has no tool servers. Its <code>mcp.json</code> names them.</p>`}
    <ul class="entries">${servers.map((server) => {
      const connection = connections.find((known) => known.server === server.name);
      const waiting = begun.find((known) => known.server === server.name);
      return html`<li key=${server.name}><div class="head"><strong>${plain(server.name)}</strong><span class="buttons">
          ${!server.connected && html`<button type="button" class="small" aria-label=${`Connect ${plain(server.name)}`} onClick=${() => start(server)}>Connect</button>`}
          ${connection !== undefined && html`<button type="button" class="small" aria-label=${`Disconnect ${plain(server.name)}`} onClick=${() => setRemoving(connection)}>Disconnect</button>`}</span></div>
        ${server.description && html`<p class="wrap">${server.description}</p>`}
        ${connection !== undefined && waiting === undefined && html`<p class="quiet small wrap">${statusOf(connection)}</p>`}
        ${waiting !== undefined && html`<${Waiting} key=${waiting.state} known=${waiting} />`}
      </li>`;
    })}</ul>
    ${asking !== undefined && html`<${KeyDialog} server=${asking} connect=${connect} close=${() => setAsking(undefined)} />`}
    ${removing !== undefined &&
    html`<${ActionDialog} title="Disconnect" action="Disconnect" danger run=${remove} close=${() => setRemoving(undefined)}>
      <p>The stored authorisation for <strong>${plain(removing.server)}</strong> is revoked and removed.</p><//>`}
  </section>`;
}

/** Reads connections again while one of them waits, and sees how each that waited has ended. */
function useAuthorizations(begun, value, again) {
  const isWaiting = begun.some(({ phase }) => phase === "waiting");
  useEffect(() => {
    if (!isWaiting) return undefined;
    const timer = setInterval(again, EVERY_MS);
    return () => clearInterval(timer);
  }, [isWaiting, again]);
  // What ended in a window of its own is there to be read.
  useEffect(() => {
    again();
  }, [begun.length]);
  useEffect(() => {
    for (const known of begun) {
      // What was read before it began says nothing of it.
      if (value === undefined || value.readAt < known.begunAt || known.phase !== "waiting") continue;
      const end = endOf(known, value.connections);
      if (end === "connected") {
        forget(known.state);
        toast(`Connected ${plain(known.server)}`);
      } else if (end !== undefined) {
        fail(known.state, ENDS[end]);
      }
    }
  }, [value, begun]);
}

function statusOf({ status, tools, error }) {
  const parts = [plain(status)];
  if (Array.isArray(tools) && tools.length > 0) parts.push(counted(tools.length, "tool"));
  if (error) parts.push(plain(error));
  return parts.join(" · ");
}

function KeyDialog({ server, connect, close }) {
  const [key, setKey] = useState("");
  const run = () => connect({ server: server.name, credentials: { api_key: key } });
  return html`<${ActionDialog} title=${`Connect ${plain(server.name)}`} action="Connect" run=${run} close=${close} ready=${key !== ""}>
    <label class="field"><span>The key that the server has issued to this user</span>
      <input type="password" autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
  <//>`;
}
