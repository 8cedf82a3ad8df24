/**
 * Markdown as elements. The parser makes a list of tokens, and this file an element for each kind of token that it
 * knows: text is never parsed as HTML, so nothing that a model or a tool writes can become a script, a style or a
 * request. HTML in Markdown is shown as text, and pictures are links: to load one would tell its server.
 */

import MarkdownIt from "../vendor/markdown-it.mjs";
import { h } from "../vendor/preact.mjs";
import { html, useMemo } from "../lib/html.js";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });

/** The elements of tokens that only enclose others. */
const ELEMENTS = new Set([
  "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "em", "strong", "s", "hr",
  "table", "thead", "tbody", "tr", "th", "td",
]);
/** Headings of an answer are below those of the page. */
const HEADINGS = { h1: "h2", h2: "h3", h3: "h4", h4: "h5", h5: "h6", h6: "h6" };
/** Deeper ones are shown as text: the page must not overflow its stack. */
const MAX_DEPTH = 40;

export function Markdown({ text }) {
  const content = useMemo(() => elements(parser.parse(text, {})), [text]);
  return html`<div class="markdown">${content}</div>`;
}

function elements(tokens) {
  const root = { tag: "", children: [] };
  const open = [root];
  for (const token of tokens) {
    const parent = open.at(-1);
    if (token.nesting === 1) {
      open.push({ tag: token.tag, token, children: [] });
    } else if (token.nesting === -1) {
      if (open.length > 1) {
        const closed = open.pop();
        open.at(-1).children.push(element(closed, open.length));
      }
    } else {
      parent.children.push(leaf(token));
    }
  }
  return root.children;
}

function element({ tag, token, children }, depth) {
  if (depth > MAX_DEPTH) return children;
  if (tag === "a") return link(token.attrGet("href"), children);
  // A paragraph of a tight list is hidden: its content stands for itself.
  if (!ELEMENTS.has(tag) || token.hidden) return children;
  if (tag === "ol") return h("ol", { start: Number(token.attrGet("start") ?? 1) }, children);
  if (tag === "table") return h("div", { class: "scroll" }, h("table", null, children));
  if (tag === "th" && children.length === 0) return h("td", null);
  return h(HEADINGS[tag] ?? tag, null, children);
}

function leaf(token) {
  switch (token.type) {
    case "inline":
      return elements(token.children ?? []);
    case "softbreak":
    case "hardbreak":
      return h("br", null);
    case "hr":
      return h("hr", null);
    case "code_inline":
      return h("code", null, token.content);
    case "code_block":
    case "fence":
      return h("pre", { tabindex: 0, role: "group", "aria-label": "Code" }, h("code", null, token.content.replace(/\n$/, "")));
    case "image":
      return link(token.attrGet("src"), [`picture: ${token.content || token.attrGet("src")}`]);
    default:
      return token.content;
  }
}

function link(href, children) {
  let url;
  try {
    url = new URL(href);
  } catch {
    return children;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return children;
  return h("a", { href: url.href, title: url.href, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}
