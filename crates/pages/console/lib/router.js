/** Where in the console one is: the part of the address behind `#`, which no server sees. */

import { Store } from "./store.js";

/** @type {Store<{parts: string[], query: URLSearchParams}>} */
export const route = new Store(parse());

addEventListener("hashchange", () => route.set(parse()));

function parse() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter((part) => part !== "");
  return { parts: parts.map(decode), query: new URLSearchParams(query) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The address of a place in the console. */
export function to(...parts) {
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** Goes there. */
export function go(...parts) {
  location.hash = to(...parts);
}
