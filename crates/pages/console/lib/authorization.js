/**
 * Authorisations at servers of others that this tab has begun, until they have ended. They are in the tab's
 * `sessionStorage`, beside the key, so a reload continues to wait.
 *
 * Where the browser comes back to the console itself, the window that it comes back in has no key: it passes what it was
 * given to the tab that has begun, over a channel that only pages of this origin can read.
 */

import { engine } from "./api.js";
import { describe } from "./errors.js";
import { session } from "./session.js";
import { Store } from "./store.js";

const ITEM = "roundhouse.authorizations";
const CHANNEL = "roundhouse.authorization";
/** The engine forgets an authorisation after this time. */
export const LIFETIME_MS = 600_000;
/** What an authorization server sends back that the engine wants to know. */
const PARAMETERS = ["code", "state", "iss", "error", "error_description"];

/**
 * @typedef {{user: string, server: string, state: string, url: string, begunAt: number,
 *   phase: "waiting" | "finishing" | "failed", error?: {title: string, text: string, advice?: string}}} Authorization
 */

/** @type {Store<Authorization[]>} */
export const authorizations = new Store(load());
authorizations.listen(() => sessionStorage.setItem(ITEM, JSON.stringify(authorizations.value)));
session.listen(() => session.value === undefined && authorizations.set([]));

function load() {
  try {
    const stored = JSON.parse(sessionStorage.getItem(ITEM) ?? "[]");
    // What was being finished when the page was left may have been: whoever looks at the connection sees it.
    return stored.map((known) => (known.phase === "finishing" ? { ...known, phase: "waiting" } : known));
  } catch {
    return [];
  }
}

/** Notes that a user's connection waits for an authorisation, which takes the place of an earlier one. */
export function begin(user, server, { state, authorization_url: url }) {
  // The address comes from the tool server.
  if (!["https:", "http:"].includes(new URL(url).protocol)) throw new Error("The server's authorization address is no web address.");
  const kept = authorizations.value.filter((known) => known.user !== user || known.server !== server);
  authorizations.set([...kept, { user, server, state, url, begunAt: Date.now(), phase: "waiting" }]);
}

/** Nobody waits for it any more. */
export function forget(state) {
  authorizations.set(authorizations.value.filter((known) => known.state !== state));
}

/** It has failed, and says why until somebody has read it. */
export function fail(state, error) {
  const { title, text, advice } = describe(error);
  change(state, { phase: "failed", error: { title, text, advice } });
}

function change(state, fields) {
  authorizations.set(authorizations.value.map((known) => (known.state === state ? { ...known, ...fields } : known)));
}

/**
 * Whether an authorisation has ended in the meantime, as the list of connections tells.
 * @returns {"connected" | "gone" | "expired" | undefined}
 */
export function endOf({ server, begunAt }, connections, now = Date.now()) {
  const status = connections.find((known) => known.server === server)?.status;
  if (status === "connected") return "connected";
  // A connection that was only pending is removed when access is denied.
  if (status === undefined) return "gone";
  return now - begunAt > LIFETIME_MS ? "expired" : undefined;
}

/** The parameters that a browser came back with, from a whole address or from a query. */
export function parametersOf(query) {
  return Object.fromEntries(PARAMETERS.flatMap((name) => (query.has(name) ? [[name, query.get(name)]] : [])));
}

/** Gives the engine what the browser came back with. */
export async function finish({ user, state }, parameters) {
  change(state, { phase: "finishing" });
  try {
    await engine(user).send("POST", "/assets/callback", { json: parameters });
    forget(state);
  } catch (error) {
    fail(state, error);
    throw error;
  }
}

/** Finishes what windows come back with. A tab does so for what it has begun only. */
const channel = new BroadcastChannel(CHANNEL);
channel.onmessage = async ({ data: { kind, parameters } }) => {
  const known = authorizations.value.find(({ state, phase }) => state === parameters?.state && phase === "waiting");
  if (kind !== "came-back" || known === undefined || session.value === undefined) return;
  const { server, state } = known;
  channel.postMessage({ kind: "taken", state });
  try {
    await finish(known, parameters);
    channel.postMessage({ kind: "ended", state, server });
  } catch (error) {
    const { title, text } = describe(error);
    channel.postMessage({ kind: "ended", state, server, error: { title, text } });
  }
};
