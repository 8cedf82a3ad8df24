/** What pages can do with a script: search, copy an example, link to a heading. Everything else is there without it. */

import { copy } from "./copy.js";
import { startSearch } from "./search.js";

startSearch(document.getElementById("search"));

for (const block of document.querySelectorAll("article pre")) {
  const frame = document.createElement("div");
  frame.className = "copy";
  block.replaceWith(frame);
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    button.textContent = await copy(commands(block.textContent), block);
    setTimeout(() => (button.textContent = "Copy"), 2_000);
  });
  frame.append(block, button);
}

/** Of a transcript, the commands: what follows a prompt, and the lines that a backslash joins to it. */
function commands(text) {
  if (!text.startsWith("$ ")) return text;
  const kept = [];
  let goesOn = false;
  for (const line of text.split("\n")) {
    if (goesOn || line.startsWith("$ ")) kept.push(goesOn ? line : line.slice(2));
    goesOn = (goesOn || line.startsWith("$ ")) && line.endsWith("\\");
  }
  return `${kept.join("\n")}\n`;
}

for (const heading of document.querySelectorAll("article :is(h2, h3, h4)[id]")) {
  const link = document.createElement("a");
  link.className = "anchor";
  link.href = `#${heading.id}`;
  link.textContent = "#";
  link.setAttribute("aria-label", `Link to ${heading.textContent}`);
  heading.append(link);
}

/** What scrolls sideways can be reached by keyboard, too. */
function reachScrollers() {
  for (const element of document.querySelectorAll("article pre, article .table")) {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}
reachScrollers();
addEventListener("resize", reachScrollers);
