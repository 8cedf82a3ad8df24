// The console of an orchestrator that cannot answer yet.

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import path from "node:path";
import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, freePort, screenshot, skip } from "./support.js";

describe("standby", { skip }, () => {
  let fleet;
  let browser;
  let standby;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
  });
  after(async () => {
    standby?.kill("SIGTERM");
    await Promise.all([fleet?.stop(), browser?.stop()]);
  });

  test("it is there, and says why nobody can sign in", async () => {
    const port = await freePort();
    const folder = path.join(fleet.folder, "up");
    const env = {
      ...process.env,
      ORCH_DATABASE_URL: `sqlite://${folder}/registry.sqlite`,
      ORCH_MASTER_KEY: readFileSync(path.join(folder, "master.key"), "utf8").trim(),
      ORCH_ADMIN_KEY: fleet.adminKey,
      ORCH_DATA_ROOT_PATH: path.join(folder, "engines"),
      ORCH_CATALOG_MOUNT_PATH: path.join(folder, "catalog"),
      ORCH_BACKEND: "process",
      ORCH_ENGINE_IMAGE: "svc-engine:0.1.0",
      ORCH_HOST: "127.0.0.1",
      ORCH_PORT: String(port),
      NO_COLOR: "1",
    };
    standby = spawn(process.env.ROUNDHOUSE_BINARY, ["orchestrator"], { env, stdio: ["ignore", "pipe", "pipe"] });
    await new Promise((resolve, reject) => {
      let output = "";
      const read = (chunk) => {
        output += chunk;
        if (output.includes("waits as a standby")) resolve();
      };
      standby.stdout.on("data", read);
      standby.stderr.on("data", read);
      standby.on("exit", () => reject(new Error(output)));
    });
    const page = await browser.page();
    await page.goto(`http://127.0.0.1:${port}/console`);
    await page.getByLabel("Platform key").fill(fleet.key);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("alert").getByText("This orchestrator is starting or a standby").waitFor();
    await screenshot(page, "standby");
    assert.deepEqual(page.faults, []);
  });
});
