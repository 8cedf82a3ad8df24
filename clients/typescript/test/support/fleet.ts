/** A fleet of `roundhouse up` with the scripted provider, in a folder and on ports of its own. */

import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, readlinkSync, rmSync, readdirSync } from "node:fs";
import { createServer, type Server } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Admin, Fleet, type HttpOptions, type Policy } from "../../src/index.js";
import { eventually } from "./wait.js";

/** What the agents say, in the tests of every client. */
const SCRIPT = fileURLToPath(new URL("../../../../stories.yaml", import.meta.url));

/** Below the range from which the system takes the ports of outgoing connections. */
const FIRST_PORT = 20_000;
const PORTS_PER_SLOT = 150;
const SLOTS = 80;

export class TestFleet {
  readonly folder: string;
  readonly #claim: Server;
  readonly #firstPort: number;
  readonly #variables: Readonly<Record<string, string>>;
  #up: ChildProcess | undefined;
  #url = "";

  private constructor(claim: Server, firstPort: number, variables: Readonly<Record<string, string>>) {
    this.folder = mkdtempSync(join(tmpdir(), "roundhouse-typescript-"));
    this.#claim = claim;
    this.#firstPort = firstPort;
    this.#variables = variables;
  }

  static async start(variables: Readonly<Record<string, string>> = {}): Promise<TestFleet> {
    const [claim, port] = await claimPorts();
    const fleet = new TestFleet(claim, port, variables);
    try {
      await fleet.#start();
    } catch (error) {
      await fleet.end();
      throw error;
    }
    return fleet;
  }

  get url(): string {
    return this.#url;
  }

  get productKey(): string {
    return this.#read("platform.key");
  }

  get fleet(): Fleet {
    return new Fleet({ url: this.#url, productKey: this.productKey });
  }

  get admin(): Admin {
    return new Admin({ url: this.#url, adminKey: this.#read("admin.key") });
  }

  /** Another product with a policy of its own. */
  async product(slug: string, policy: Policy, options: HttpOptions = {}): Promise<Fleet> {
    const product = await this.admin.register({ slug, display_name: slug, policy });
    return new Fleet({ url: this.#url, productKey: product.platform_api_key, ...options });
  }

  /** Kills the processes of a user's engine, as a crash does. */
  killEngine(engineId: string): void {
    const pids = processesMentioning(join(this.folder, "fleet", "engines", engineId));
    if (pids.length === 0) throw new Error(`no process of ${engineId} is running`);
    for (const pid of pids) kill(pid);
  }

  /** Ends every process of it, and removes its folder. */
  async end(): Promise<void> {
    this.#up?.kill("SIGKILL");
    await eventually("the processes have ended", () => {
      const pids = processesMentioning(this.folder);
      for (const pid of pids) kill(pid);
      return Promise.resolve(pids.length === 0);
    });
    rmSync(this.folder, { recursive: true, force: true });
    await new Promise((resolve) => this.#claim.close(resolve));
  }

  async #start(): Promise<void> {
    const output = openSync(join(this.folder, "output"), "a");
    this.#up = spawn(binary(), ["up", "--dir", join(this.folder, "fleet")], {
      env: {
        PATH: process.env["PATH"],
        HOME: this.folder,
        ORCH_PORT: "0",
        ORCH_PORT_MIN: String(this.#firstPort + 1),
        ORCH_PORT_MAX: String(this.#firstPort + PORTS_PER_SLOT - 1),
        LLM_PROVIDER: "scripted",
        LLM_SCRIPT_PATH: SCRIPT,
        ...this.#variables,
      },
      stdio: ["ignore", output, output],
    });
    await eventually("the fleet is ready", async () => {
      if (this.#up?.exitCode != null) throw new Error(readFileSync(join(this.folder, "output"), "utf8"));
      try {
        this.#url = this.#read("address");
        return (await fetch(`${this.#url}/health`)).ok;
      } catch {
        return false;
      }
    });
  }

  #read(file: string): string {
    return readFileSync(join(this.folder, "fleet", file), "utf8").trim();
  }
}

export function binary(): string {
  const path = process.env["ROUNDHOUSE_BINARY"];
  if (path === undefined)
    throw new Error("ROUNDHOUSE_BINARY must name the `roundhouse` binary to test against");
  return path;
}

/** Claims a range of ports: its first one is held, so that no other fleet takes the range. */
async function claimPorts(): Promise<[Server, number]> {
  for (let slot = 0; slot < SLOTS; slot += 1) {
    const port = FIRST_PORT + ((slot + process.pid) % SLOTS) * PORTS_PER_SLOT;
    const server = createServer();
    const claimed = await new Promise<boolean>((resolve) => {
      server.once("error", () => {
        resolve(false);
      });
      server.listen(port, "127.0.0.1", () => {
        resolve(true);
      });
    });
    if (claimed) return [server, port];
  }
  throw new Error("all ranges of ports are in use");
}

/** The processes whose environment or command mentions a path. Only this fleet's do. */
function processesMentioning(path: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => {
      try {
        readlinkSync(`/proc/${pid}/exe`); // a process that has ended has none
        const text =
          readFileSync(`/proc/${pid}/environ`, "utf8") + readFileSync(`/proc/${pid}/cmdline`, "utf8");
        return text.includes(path);
      } catch {
        return false;
      }
    })
    .map(Number);
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // It has ended by itself.
  }
}
