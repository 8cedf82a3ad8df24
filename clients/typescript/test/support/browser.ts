/** Chromium, with a profile of its own. */

import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type BrowserContext, chromium, type Page } from "playwright-core";

const CHROMIUM = "/usr/bin/chromium";
const ARGUMENTS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

const isMissing = !existsSync(CHROMIUM);
if (isMissing && process.env["ROUNDHOUSE_REQUIRE_ALL"] === "1") {
  throw new Error(`${CHROMIUM} is missing; \`.ci/browser\` installs it`);
}
/** Why tests that need it are skipped, if they are. */
export const skip = isMissing && `${CHROMIUM} is missing; \`.ci/browser\` installs it`;

/** What pages of a `Site` import. */
export const PACKAGE = "/client/index.js";

export class Browser {
  readonly #context: BrowserContext;
  readonly #profile: string;
  /** What pages have thrown and nobody has caught. */
  readonly faults: string[] = [];

  private constructor(context: BrowserContext, profile: string) {
    this.#context = context;
    this.#profile = profile;
  }

  static async start(): Promise<Browser> {
    const profile = mkdtempSync(join(tmpdir(), "roundhouse-chromium-"));
    const options = { executablePath: CHROMIUM, args: ARGUMENTS, timeout: 15_000 };
    return new Browser(await chromium.launchPersistentContext(profile, options), profile);
  }

  async open(url: string): Promise<Page> {
    const page = await this.#context.newPage();
    page.setDefaultTimeout(15_000);
    page.on("pageerror", (error) => this.faults.push(error.message));
    await page.goto(url);
    return page;
  }

  async end(): Promise<void> {
    await this.#context.close();
    rmSync(this.#profile, { recursive: true, force: true });
  }
}
