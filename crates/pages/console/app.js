/** The console: who is signed in, where one is, and the frame around each view. */

import { html, render, useEffect, useRef, useState } from "./lib/html.js";
import { closeFleet } from "./lib/fleet.js";
import { farewell, session, signOut } from "./lib/session.js";
import { route } from "./lib/router.js";
import { useStore } from "./lib/store.js";
import { Frame } from "./parts/frame.js";
import { Empty, ErrorNotice, Loading } from "./parts/notice.js";
import { Toasts } from "./parts/toast.js";
import { SignIn } from "./views/sign-in.js";
import { Engines } from "./views/engines.js";

/** Views that are loaded when they are first looked at. */
const LAZY = {
  overview: () => import("./views/overview.js"),
  engine: () => import("./views/engine.js"),
  chat: () => import("./chat/view.js"),
  agent: () => import("./views/agent.js"),
  audit: () => import("./views/audit.js"),
  policy: () => import("./views/policy.js"),
  products: () => import("./views/products.js"),
  usage: () => import("./views/usage.js"),
  authorized: () => import("./views/authorized.js"),
};

function App() {
  const who = useStore(session);
  const why = useStore(farewell);
  const { parts } = useStore(route);
  const product = who?.kind === "admin" ? who.product?.id : who?.key;
  // Another product has another fleet. It is closed before any view of the new one is drawn.
  const shown = useRef(product);
  if (shown.current !== product) {
    closeFleet();
    shown.current = product;
  }
  // A window that comes back from an authorization server has no key.
  if (parts[0] === "authorized") return html`<${Lazy} name="authorized" />`;
  if (who === undefined) return html`<${SignIn} farewell=${why} /><${Toasts} />`;
  return html`<${Frame} session=${who} signOut=${() => signOut()}><${View} session=${who} key=${product ?? ""} /><//><${Toasts} />`;
}

/** The view of the place in the address. */
function View({ session: who }) {
  const { parts } = useStore(route);
  const [place, user, below, ...rest] = parts.length === 0 ? [start(who)] : parts;
  useEffect(() => {
    document.title = `${[user, place].filter(Boolean).join(" · ")} · Roundhouse`;
  }, [place, user]);
  if (who.kind === "admin" && who.product === undefined) {
    return html`<${Lazy} name=${place === "usage" ? "usage" : "products"} key=${place} />`;
  }
  if (place === "engines" && user === undefined) return html`<${Engines} />`;
  if (place === "engines" && below === "chat" && who.kind === "platform") {
    return html`<${Lazy} name="chat" key=${user} user=${user} task=${rest[0]} />`;
  }
  if (place === "engines" && below === "agent" && who.kind === "platform") {
    return html`<${Lazy} name="agent" key=${user} user=${user} />`;
  }
  if (place === "engines" && below === undefined) return html`<${Lazy} name="engine" key=${user} user=${user} />`;
  if (["overview", "audit", "usage", "policy", "products"].includes(place)) return html`<${Lazy} name=${place} key=${place} />`;
  return html`<${Empty} title="There is no such page"><p><a href="#/engines">All engines</a></p><//>`;
}

function start(who) {
  return who.kind === "admin" && who.product === undefined ? "products" : "overview";
}

/** A view that is loaded on demand. */
function Lazy({ name, ...props }) {
  const [state, setState] = useState({});
  useEffect(() => {
    let gone = false;
    LAZY[name]().then(
      (module) => gone || setState({ name, Component: module.default }),
      () => gone || setState({ name, failed: true }),
    );
    return () => {
      gone = true;
    };
  }, [name]);
  // What was shown before must not be drawn with the properties of what is to be shown.
  if (state.name !== name) return html`<${Loading} what="the page" />`;
  if (state.failed) {
    const error = new Error("This part of the console cannot be loaded. It may have been updated: reload the page.");
    return html`<${ErrorNotice} error=${error} again=${() => location.reload()} />`;
  }
  return html`<${state.Component} ...${props} />`;
}

// An authorisation that was begun before a reload is waited for, whichever view is shown.
if (sessionStorage.getItem("roundhouse.authorizations") !== null) import("./lib/authorization.js");

// What the page says until now stays if the browser lacks something; what that is would otherwise be found much later.
const NEEDED = [AbortSignal.any, AbortSignal.timeout, Array.prototype.toReversed, Array.prototype.with, globalThis.BroadcastChannel];
if (NEEDED.every((feature) => typeof feature === "function")) {
  const root = document.getElementById("app");
  root.replaceChildren();
  render(html`<${App} />`, root);
}
