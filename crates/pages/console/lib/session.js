/**
 * Who is signed in: a product by its platform key, or the operator by the admin key. The key is in the tab's
 * `sessionStorage`: a reload keeps it, and closing the tab, or signing out, removes it.
 */

import { Store } from "./store.js";

const ITEM = "roundhouse.session";

/** @typedef {{kind: "platform" | "admin", key: string, product?: {id: string, slug: string}}} Session */

/** @type {Store<Session | undefined>} */
export const session = new Store(load());
/** Why the last session ended, if it was not its user who ended it. */
export const farewell = new Store("");

function load() {
  try {
    const stored = JSON.parse(sessionStorage.getItem(ITEM) ?? "null");
    return typeof stored?.key === "string" ? stored : undefined;
  } catch {
    return undefined;
  }
}

/** @param {Session} value */
export function signIn(value) {
  sessionStorage.setItem(ITEM, JSON.stringify(value));
  farewell.set("");
  session.set(value);
}

export function signOut(reason = "") {
  sessionStorage.removeItem(ITEM);
  farewell.set(reason);
  session.set(undefined);
}

/** The product that an operator looks at; undefined leaves it. */
export function chooseProduct(product) {
  if (session.value !== undefined) signIn({ ...session.value, product });
}

/** The headers by which the session's calls are known. */
export function keyHeaders({ kind, key, product }) {
  if (kind === "platform") return { "X-Platform-Key": key };
  return product === undefined ? { "X-Admin-Key": key } : { "X-Admin-Key": key, "X-Product-Id": product.id };
}
