/** A user's connections to tool servers. */

import { html, useEffect, useState } from "../lib/html.js";
import { engine, path } from "../lib/api.js";
import { count, plain } from "../lib/format.js";
import { useLoaded } from "../lib/load.js";
import { ActionDialog } from "./dialog.js";
import { ErrorNotice } from "./notice.js";
import { toast } from "./toast.js";

/** While somebody authorises in another window, this asks whether it is done. */
const EVERY_MS = 2_000;

export function Connections({ user }) {
  const read = async (signal) => {
    const [{ servers }, { connections }] = await Promise.all([
      engine(user).get("/assets/servers", { signal }),
      engine(user).get("/assets/connections", { signal }),
    ]);
    return { servers, connections };
  };
  const { value, error, again } = useLoaded(read, [user]);
  const [waiting, setWaiting] = useState(false);
  const [removing, setRemoving] = useState();
  const [failure, setFailure] = useState();
  useEffect(() => {
    if (!waiting) return undefined;
    const timer = setInterval(again, EVERY_MS);
    return () => clearInterval(timer);
  }, [waiting, again]);
  const [asking, setAsking] = useState();
  const start = (server) => (server.auth === "api_key" ? setAsking(server) : connect({ server: server.name }).catch(setFailure));
  const connect = async (json) => {
    setFailure(undefined);
    const outcome = await engine(user).send("POST", "/assets/connect", { json });
    const url = outcome.authorization_url;
    if (url !== undefined) {
      // The address comes from the tool server.
      if (!["https:", "http:"].includes(new URL(url).protocol)) throw new Error("The server's authorization address is no web address.");
      window.open(url, "_blank", "noopener,noreferrer");
    }
    setWaiting(url !== undefined);
    await again();
  };
  const remove = async () => {
    await engine(user).send("DELETE", path`/assets/connections/${removing.connection}`);
    toast("Disconnected");
    again();
  };
  const { servers = [], connections = [] } = value ?? {};
  return html`<section class="card" aria-labelledby="connections"><h2 id="connections">Connections</h2>
    ${(failure ?? error) !== undefined && html`<${ErrorNotice} error=${failure ?? error} again=${again} />`}
    ${waiting && connections.some((known) => known.status === "pending") && html`<p class="live live-reconnecting" role="status">waits for the authorisation in the other window</p>`}
    ${value !== undefined && servers.length === 0 && html`<p class="quiet">The catalog has no tool servers.</p>`}
    <ul class="entries">${servers.map((server) => {
      const connection = connections.find((known) => known.server === server.name);
      return html`<li key=${server.name}><div class="head"><strong>${plain(server.name)}</strong><span>
          ${!server.connected && html`<button type="button" class="small" aria-label=${`Connect ${plain(server.name)}`} onClick=${() => start(server)}>Connect</button>`}
          ${connection !== undefined && html` <button type="button" class="small" aria-label=${`Disconnect ${plain(server.name)}`} onClick=${() => setRemoving(connection)}>Disconnect</button>`}</span></div>
        ${server.description && html`<p class="wrap">${server.description}</p>`}
        ${connection !== undefined && html`<p class="quiet small">${plain(connection.status)}${Array.isArray(connection.tools) ? ` · ${count(connection.tools.length)} tools` : ""}${connection.error ? ` · ${plain(connection.error)}` : ""}</p>`}
      </li>`;
    })}</ul>
    ${asking !== undefined && html`<${KeyDialog} server=${asking} connect=${connect} close=${() => setAsking(undefined)} />`}
    ${removing !== undefined &&
    html`<${ActionDialog} title="Disconnect" action="Disconnect" danger run=${remove} close=${() => setRemoving(undefined)}>
      <p>The stored authorisation for <strong>${plain(removing.server)}</strong> is revoked and removed.</p><//>`}
  </section>`;
}

function KeyDialog({ server, connect, close }) {
  const [key, setKey] = useState("");
  const run = () => connect({ server: server.name, credentials: { api_key: key } });
  return html`<${ActionDialog} title=${`Connect ${plain(server.name)}`} action="Connect" run=${run} close=${close} ready=${key !== ""}>
    <label class="field"><span>The key that the server has issued to this user</span>
      <input type="password" autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
  <//>`;
}
