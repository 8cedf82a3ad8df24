import { setTimeout as sleep } from "node:timers/promises";

const DEADLINE_MS = 60_000;

/** Waits until `probe` returns true. */
export async function eventually(what: string, probe: () => Promise<boolean>): Promise<void> {
  const deadline = Date.now() + DEADLINE_MS;
  while (!(await probe())) {
    if (Date.now() > deadline) throw new Error(`it did not happen within 60 s: ${what}`);
    await sleep(10);
  }
}
