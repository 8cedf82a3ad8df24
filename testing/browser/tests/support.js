// What the tests share: a fleet of the real binary, Chromium, and a connection between them that can be cut.

import { spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { chromium } from "playwright-core";

const CHROMIUM = "/usr/bin/chromium";
const BINARY = process.env.ROUNDHOUSE_BINARY;
/** Where screenshots are written, if anywhere. */
const SHOTS = process.env.ROUNDHOUSE_SCREENSHOTS;
/** For whoever works on the pages: the console comes from its source folder, and not from the binary. */
const FROM_SOURCE = process.env.ROUNDHOUSE_CONSOLE_SOURCE === "1";

const missing = !existsSync(CHROMIUM) && `${CHROMIUM} is missing; \`.ci/browser\` installs it`;
if (missing && process.env.ROUNDHOUSE_REQUIRE_ALL === "1") throw new Error(missing);
/** Why the tests are skipped, if they are. */
export const skip = missing;

/** A fleet of `roundhouse up`, with the product `demo`. */
export class Fleet {
  /** With `port`, that is where the console is. `catalog` has files of the catalog by name. */
  static async start({ script, env = {}, port = 0, catalog = {} } = {}) {
    const fleet = new Fleet();
    fleet.folder = mkdtempSync(path.join(tmpdir(), "roundhouse-console-"));
    const variables = { ...process.env, ROUNDHOUSE_LOG: "warn", ...env };
    if (script !== undefined) {
      variables.LLM_SCRIPT_PATH = path.join(fleet.folder, "script.yaml");
      writeFileSync(variables.LLM_SCRIPT_PATH, script);
    }
    const args = ["up", "--dir", path.join(fleet.folder, "up"), "--port", String(FROM_SOURCE ? 0 : port)];
    fleet.process = spawn(BINARY, args, { env: variables, stdio: ["ignore", "pipe", "pipe"] });
    fleet.base = await new Promise((resolve, reject) => {
      let output = "";
      const read = (chunk) => {
        output += chunk;
        const found = /Roundhouse is up at (\S+)/.exec(output);
        if (found) resolve(found[1]);
      };
      fleet.process.stdout.on("data", read);
      fleet.process.stderr.on("data", read);
      fleet.process.on("exit", () => reject(new Error(output)));
    });
    const read = (name) => readFileSync(path.join(fleet.folder, "up", name), "utf8").trim();
    fleet.key = read("platform.key");
    fleet.adminKey = read("admin.key");
    fleet.console = fleet.base;
    if (FROM_SOURCE) await fleet.#serveFromSource(port || (await freePort()));
    // Engines read them when they start.
    for (const [name, content] of Object.entries(catalog)) {
      writeFileSync(path.join(fleet.folder, "up", "catalog", name), JSON.stringify(content));
    }
    return fleet;
  }

  async #serveFromSource(port) {
    const file = new URL("../dev.js", import.meta.url).pathname;
    this.dev = spawn(process.execPath, [file, this.base, String(port)], { stdio: ["ignore", "pipe", "inherit"] });
    await new Promise((resolve) => this.dev.stdout.once("data", resolve));
    this.console = `http://127.0.0.1:${port}`;
  }

  async call(method, route, body, headers = { "X-Platform-Key": this.key }) {
    const init = { method, headers, body: body === undefined ? undefined : JSON.stringify(body) };
    const response = await fetch(new URL(route, this.base), init);
    if (!response.ok) throw new Error(`${method} ${route}: ${response.status} ${await response.text()}`);
    return response.json();
  }

  provision(user) {
    return this.call("POST", "/engines/provision", { user_id: user });
  }

  /** The process of the newest engine, which is a child of the orchestrator's. */
  engineProcess() {
    const children = readdirSync("/proc").filter((name) => {
      if (!/^\d+$/.test(name)) return false;
      try {
        const fields = readFileSync(`/proc/${name}/stat`, "utf8").replace(/^.*\) /, "").split(" ");
        return Number(fields[1]) === this.process.pid;
      } catch {
        return false;
      }
    });
    return Math.max(...children.map(Number));
  }

  /** The memory of the orchestrator that is its own, in bytes. */
  memory() {
    const rollup = readFileSync(`/proc/${this.process.pid}/smaps_rollup`, "utf8");
    return ["Private_Clean", "Private_Dirty"].reduce(
      (sum, name) => sum + 1024 * Number(new RegExp(`${name}:\\s+(\\d+)`).exec(rollup)[1]),
      0,
    );
  }

  /** The connections to the orchestrator's port that are open. */
  connections() {
    const port = Number(new URL(this.base).port).toString(16).toUpperCase().padStart(4, "0");
    const rows = readFileSync("/proc/net/tcp", "utf8").split("\n").map((row) => row.trim().split(/\s+/));
    // 01: established. The second field is the local address, so each connection counts once.
    return rows.filter(([, local, , state]) => local?.endsWith(`:${port}`) && state === "01").length;
  }

  async stop() {
    this.dev?.kill();
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill("SIGTERM");
    await ended;
    rmSync(this.folder, { recursive: true, force: true });
  }
}

export function freePort() {
  return new Promise((resolve) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** A way to the orchestrator that can be cut. */
export class Wire {
  #sockets = new Set();
  #cut = false;
  /** The bytes that came from the orchestrator since the wire was mended. */
  received = 0;

  static async to(target) {
    const wire = new Wire();
    const { hostname, port } = new URL(target);
    wire.server = net.createServer((client) => {
      if (wire.#cut) return client.destroy();
      const server = net.connect(Number(port), hostname);
      for (const socket of [client, server]) {
        wire.#sockets.add(socket);
        socket.on("error", () => undefined);
        socket.on("close", () => {
          wire.#sockets.delete(socket);
          client.destroy();
          server.destroy();
        });
      }
      server.on("data", (chunk) => (wire.received += chunk.length));
      client.pipe(server).pipe(client);
    });
    await new Promise((resolve) => wire.server.listen(0, "127.0.0.1", resolve));
    wire.base = `http://127.0.0.1:${wire.server.address().port}`;
    return wire;
  }

  cut() {
    this.#cut = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend() {
    this.#cut = false;
    this.received = 0;
  }

  close() {
    this.cut();
    this.server.close();
  }
}

/** Chromium, and what its pages did that they should not. */
export class Browser {
  static async start() {
    const browser = new Browser();
    const args = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"];
    browser.chromium = await chromium.launch({ executablePath: CHROMIUM, args });
    return browser;
  }

  /** A page of its own profile. `faults` has what must not happen, as text. */
  async page(options = {}) {
    const context = await this.chromium.newContext({ viewport: { width: 1440, height: 900 }, ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(15_000);
    page.faults = [];
    const origins = new Set();
    page.on("request", (request) => {
      const url = new URL(request.url());
      if (["data:", "blob:", "about:"].includes(url.protocol)) return;
      if (request.isNavigationRequest() && origins.size === 0) origins.add(url.origin);
      if (!origins.has(url.origin)) page.faults.push(`a request left the origin: ${url}`);
      if (/sk-svc-|pk-svc-|ak-/.test(url.href)) page.faults.push(`a key in an address: ${url}`);
    });
    page.on("pageerror", (error) => page.faults.push(`error: ${error.stack}`));
    page.on("dialog", (dialog) => {
      page.faults.push(`a script ran: ${dialog.message()}`);
      dialog.dismiss();
    });
    page.on("console", (message) => {
      if (/Content Security Policy|TrustedHTML|Trusted Type/i.test(message.text())) page.faults.push(message.text());
    });
    // Whoever starts a container on this machine changes its network, at which Chromium gives up what it is loading.
    let changed = false;
    page.on("requestfailed", (request) => {
      changed ||= request.failure()?.errorText === "net::ERR_NETWORK_CHANGED";
    });
    const goTo = page.goto.bind(page);
    page.goto = async (url) => {
      for (let attempt = 0; ; attempt += 1) {
        changed = false;
        const response = await goTo(url);
        if (!changed || attempt > 5) return response;
        // A part of the address behind # alone would load nothing.
        await goTo("about:blank");
      }
    };
    context.on("page", (popup) => page.faults.push(`a window was opened: ${popup.url()}`));
    return page;
  }

  stop() {
    return this.chromium.close();
  }
}

/** Signs in, as the product unless `kind` is `Operator`. */
export async function signIn(page, fleet, { base = fleet.console, kind = "Product", place = "" } = {}) {
  await page.goto(`${base}/console${place}`);
  if (kind !== "Product") await page.getByLabel(kind).check();
  await page.getByLabel(/ key$/).fill(kind === "Product" ? fleet.key : fleet.adminKey);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("navigation", { name: "Console" }).waitFor();
}

export async function goTo(page, ...parts) {
  const hash = `#/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
  await page.evaluate((to) => {
    location.hash = to;
  }, hash);
}

/** Opens a conversation with the user's engine. */
export async function openChat(page, user, task) {
  await goTo(page, "engines", user, "chat", task);
  await page.getByLabel("Message", { exact: true }).waitFor();
}

export async function say(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

/** Waits until the last turn has ended. */
export function ended(page) {
  return page.getByRole("button", { name: "Retry" }).waitFor();
}

export async function screenshot(page, name) {
  if (SHOTS === undefined) return;
  mkdirSync(SHOTS, { recursive: true });
  await page.screenshot({ path: path.join(SHOTS, `${name}.png`) });
}

/** Tries until `check` does not throw, for ten seconds. */
export async function eventually(check) {
  const deadline = Date.now() + 10_000;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
