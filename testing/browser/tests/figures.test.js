// Figures that the console promises. They are printed, too, so that a change of them is seen before it is a failure.

import assert from "node:assert/strict";
import { availableParallelism, loadavg } from "node:os";
import { after, before, describe, test } from "node:test";
import { Browser, Fleet, Wire, eventually, signIn, skip } from "./support.js";

const KIB = 1024;
const ENGINES = 10_000;
/** Frames come 60 times a second at most. */
const MIN_FRAMES_PER_S = 50;
const MAX_PAINT_MS = 300;
/** What else runs on the machine may take one of these; none of them may be slow without it. */
const ATTEMPTS = 5;
/** On a machine that is busy with something else, times measure that: what they would have to be is said, not required. */
const IS_BUSY = loadavg()[0] > availableParallelism() * 1.5;

describe("figures", { skip }, () => {
  let fleet;
  let browser;
  before(async () => {
    [fleet, browser] = await Promise.all([Fleet.start(), Browser.start()]);
  });
  after(() => Promise.all([fleet?.stop(), browser?.stop()]));

  function assertInTime(t, holds, what) {
    if (!holds && IS_BUSY) t.diagnostic(`skipped: the machine is busy: ${what}`);
    else assert.ok(holds, what);
  }

  test("the first page is small, and there at once", async (t) => {
    const wire = await Wire.to(fleet.console);
    const page = await browser.page();
    // The second page of a browser: the first one also waits for its renderer to start.
    await page.goto(`${wire.base}/console`);
    await page.getByLabel("Platform key").waitFor();
    const shown = [];
    let other;
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      wire.mend();
      other = await browser.page();
      await other.goto(`${wire.base}/console`);
      await other.getByLabel("Platform key").waitFor();
      // What is painted first is the form, whose listeners are there with it.
      shown.push(await other.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    }
    const [kib, ms] = [wire.received / KIB, Math.min(...shown)];
    t.diagnostic(`first page: ${kib.toFixed(1)} KiB with all headers, usable after ${ms.toFixed(0)} ms`);
    assert.ok(kib <= 150, `${kib} KiB`);
    assertInTime(t, ms <= MAX_PAINT_MS, `${ms.toFixed(0)} ms until the first page is usable, at most ${MAX_PAINT_MS}`);
    // What is named by its hash is not asked for again; the page itself is, and has not changed.
    wire.mend();
    await other.reload();
    await other.getByLabel("Platform key").waitFor();
    t.diagnostic(`reload: ${(wire.received / KIB).toFixed(1)} KiB`);
    if (process.env.ROUNDHOUSE_CONSOLE_SOURCE !== "1") assert.ok(wire.received < 4 * KIB, `${wire.received} bytes`);
    wire.close();
    assert.deepEqual([...page.faults, ...other.faults], []);
  });

  /** A page whose engines and events come from here, and not from the fleet. */
  async function pageOfMany() {
    const page = await browser.page();
    const engine = (index) => ({
      engine_id: `eng_${index}`,
      user_id: `user-${String(index).padStart(5, "0")}`,
      status: ["running", "sleeping", "sleeping", "stopped"][index % 4],
      url: null,
      engine_version: "svc-engine:1.2.3",
      created_at: new Date(1_790_000_000_000 + index).toISOString(),
      last_health_at: null,
    });
    await page.route("**/engines?*", (route) => {
      const query = new URL(route.request().url()).searchParams;
      const [offset, limit] = [Number(query.get("offset")), Number(query.get("limit"))];
      const engines = Array.from({ length: Math.min(limit, ENGINES - offset) }, (_, index) => engine(offset + index));
      return route.fulfill({ json: { engines, total: ENGINES } });
    });
    return page;
  }

  /** Scrolls until it is fast enough, and returns the frames per second. */
  async function framesPerSecond(page) {
    const all = [];
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      all.push(await scroll(page));
      if (all.at(-1) >= MIN_FRAMES_PER_S) break;
    }
    return Math.max(...all);
  }

  /** Scrolls for two seconds, and counts frames. */
  function scroll(page) {
    return page.locator(".tbody").evaluate(
      (body) =>
        new Promise((resolve) => {
          const begin = performance.now();
          let frames = 0;
          const step = (now) => {
            frames += 1;
            // Some 300 rows a second.
            body.scrollTop = (body.scrollTop + 220) % (body.scrollHeight - body.clientHeight);
            if (now - begin < 2_000) requestAnimationFrame(step);
            else resolve((frames * 1_000) / (now - begin));
          };
          requestAnimationFrame(step);
        }),
    );
  }

  test("10,000 engines scroll without jank", async (t) => {
    const page = await pageOfMany();
    await signIn(page, fleet, { place: "#/engines" });
    await page.getByText("10,000 engines").waitFor();
    const frames = await framesPerSecond(page);
    const rows = await page.locator(".tbody .tr").count();
    t.diagnostic(`10,000 engines: ${frames.toFixed(1)} frames/s while scrolling, ${rows} rows are elements`);
    assertInTime(t, frames >= MIN_FRAMES_PER_S, `${frames.toFixed(1)} frames/s, at least ${MIN_FRAMES_PER_S}`);
    assert.ok(rows < 100);
    const begin = Date.now();
    await page.getByLabel("Search users").fill("user-0999");
    await page.getByText("10 of 10,000 engines").waitFor();
    t.diagnostic(`10,000 engines: searched in ${Date.now() - begin} ms`);
    assert.deepEqual(page.faults, []);
    await page.context().close();
  });

  test("100 changes a second are shown as they come", async (t) => {
    const page = await pageOfMany();
    // A stream that the test writes: in the page, because a routed answer cannot stream.
    await page.addInitScript(() => {
      const { fetch } = globalThis;
      globalThis.sent = 0;
      globalThis.fetch = (url, init) => {
        if (!String(url).includes("/events")) return fetch(url, init);
        const encoder = new TextEncoder();
        let id = Number(new URL(url).searchParams.get("after"));
        const body = new ReadableStream({
          start(controller) {
            const write = () => {
              const user_id = `user-${String(id % 10_000).padStart(5, "0")}`;
              const row = { id: (id += 1), at: new Date().toISOString(), user_id, engine_id: "eng_x", event: "crash", duration_ms: null, detail: { from: "running", to: "failed" } };
              controller.enqueue(encoder.encode(`id: ${id}\nevent: crash\ndata: ${JSON.stringify(row)}\n\n`));
              globalThis.sent += 1;
            };
            globalThis.stopEvents = clearInterval.bind(undefined, setInterval(write, 10));
          },
        });
        return Promise.resolve(new Response(body));
      };
    });
    await signIn(page, fleet, { place: "#/engines" });
    await page.getByText("10,000 engines").waitFor();
    const frames = await framesPerSecond(page);
    await page.waitForFunction(() => globalThis.sent >= 300);
    const sent = await page.evaluate(() => {
      globalThis.stopEvents();
      return globalThis.sent;
    });
    const begin = Date.now();
    await eventually(async () => {
      const options = await page.getByRole("combobox").locator("option").allTextContents();
      assert.ok(options.includes(`failed (${sent})`), options.join());
    });
    t.diagnostic(`100 changes/s: ${frames.toFixed(1)} frames/s, all ${sent} shown ${Date.now() - begin} ms after the last`);
    assertInTime(t, frames >= MIN_FRAMES_PER_S, `${frames.toFixed(1)} frames/s, at least ${MIN_FRAMES_PER_S}`);
    assert.deepEqual(page.faults, []);
  });

  test("an open console costs the orchestrator little memory", async (t) => {
    await fleet.provision("ada");
    const consoles = 12;
    // The first ones pay for what all of them share.
    const open = async (pages) => {
      for (let index = 0; index < pages; index += 1) {
        const page = await browser.page();
        await signIn(page, fleet, { place: "#/engines" });
        await page.getByText("live").first().waitFor();
      }
    };
    await open(4);
    const earlier = fleet.memory();
    await open(consoles);
    const kib = (fleet.memory() - earlier) / consoles / KIB;
    t.diagnostic(`memory of the orchestrator per open console: ${kib.toFixed(0)} KiB`);
    assert.ok(kib <= 100, `${kib} KiB`);
    // What loading the page has opened is closed. What stays is the stream of events.
    const opened = fleet.connections();
    const deadline = Date.now() + 60_000;
    while (fleet.connections() > 4 + consoles && Date.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 500));
    t.diagnostic(`connections of ${4 + consoles} consoles: ${opened} when they have opened, ${fleet.connections()} later`);
    assert.equal(fleet.connections(), 4 + consoles);
  });
});
