import assert from "node:assert/strict";
import type { ApiError } from "../../src/index.js";

/** Expects an error of its code's class. */
export async function expectRefusal(
  promise: Promise<unknown>,
  type: typeof ApiError,
  code: string,
  status: number,
): Promise<void> {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof type, String(error));
    assert.deepEqual([error.code, error.status], [code, status]);
    assert.ok(error.message.length > 0);
    assert.ok(error.requestId !== undefined);
    return true;
  });
}
