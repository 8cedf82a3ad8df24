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
};

function App() {
  const who = useStore(session);
  const why = useStore(farewell);
  const product = who?.kind === "admin" ? who.product?.id : who?.key;
  // Another product has another fleet. It is closed before any view of the new one is drawn.
  const shown = useRef(product);
  if (shown.current !== product) {
    closeFleet();
    shown.current = product;
  }
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
  if (who.kind === "admin" && who.product === undefined) return html`<${Lazy} name="products" />`;
  if (place === "engines" && user === undefined) return html`<${Engines} />`;
  if (place === "engines" && below === "chat" && who.kind === "platform") {
    return html`<${Lazy} name="chat" key=${user} user=${user} task=${rest[0]} />`;
  }
  if (place === "engines" && below === "agent" && who.kind === "platform") {
    return html`<${Lazy} name="agent" key=${user} user=${user} />`;
  }
  if (place === "engines" && below === undefined) return html`<${Lazy} name="engine" key=${user} user=${user} />`;
  if (["overview", "audit", "policy", "products"].includes(place)) return html`<${Lazy} name=${place} key=${place} />`;
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
      (module) => gone || setState({ Component: module.default }),
      () => gone || setState({ failed: true }),
    );
    return () => {
      gone = true;
    };
  }, [name]);
  if (state.failed) {
    const error = new Error("This part of the console cannot be loaded. It may have been updated: reload the page.");
    return html`<${ErrorNotice} error=${error} again=${() => location.reload()} />`;
  }
  return state.Component === undefined ? html`<${Loading} what="the page" />` : html`<${state.Component} ...${props} />`;
}

render(html`<${App} />`, document.getElementById("app"));
