/** The package as it is published: in an empty project, its strict examples compile and run. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { TestFleet } from "./support/fleet.js";

const root = fileURLToPath(new URL("../../", import.meta.url));
/** What is in the package beside its code. */
const BESIDE = ["CHANGELOG.md", "LICENSE", "README.md", "package.json"];
const TOOLS = join(root, "node_modules/.bin");
/** The examples, and what they print. */
const OUTPUTS = {
  quickstart: [/^Hello! You said: "Hello!"\./],
  events: [/→ write_file/, /end_turn, \d+ tokens/],
  files: [/année\.txt 15\n15 of 15 bytes\nFILE_NOT_FOUND 404\n$/],
};
const EXAMPLES = Object.keys(OUTPUTS) as (keyof typeof OUTPUTS)[];

function checkOutput(example: keyof typeof OUTPUTS, output: string): void {
  for (const expected of OUTPUTS[example]) assert.match(output, expected);
}

/** Everything is checked, the declarations of the package too. */
const TSCONFIG = {
  compilerOptions: {
    target: "ES2022",
    module: "NodeNext",
    strict: true,
    exactOptionalPropertyTypes: true,
    noUncheckedIndexedAccess: true,
    noPropertyAccessFromIndexSignature: true,
    skipLibCheck: false,
    lib: ["ES2023", "DOM", "DOM.Iterable"],
    types: ["node"],
  },
};

suite("the package", () => {
  let fleet: TestFleet;
  let project: string;
  before(async () => {
    fleet = await TestFleet.start({ LLM_SCRIPT_PATH: "" });
    project = mkdtempSync(join(tmpdir(), "roundhouse-client-package-"));
  });
  after(async () => {
    rmSync(project, { recursive: true, force: true });
    await fleet.end();
  });

  async function run(command: string, args: string[], cwd = project): Promise<string> {
    const environment = {
      ...process.env,
      DENO_DIR: join(project, ".deno"),
      DENO_NO_UPDATE_CHECK: "1",
      ROUNDHOUSE_URL: fleet.url,
      ROUNDHOUSE_PRODUCT_KEY: fleet.productKey,
    };
    try {
      return (await promisify(execFile)(command, args, { cwd, env: environment })).stdout;
    } catch (error) {
      const { stdout, stderr } = error as { stdout: string; stderr: string };
      throw new Error(`${command} ${args.join(" ")}\n${stdout}${stderr}`, { cause: error });
    }
  }

  test("it is packed, installed, compiled against and run", async () => {
    const packed = JSON.parse(
      await run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", project], root),
    ) as [{ filename: string; files: { path: string }[] }];
    const files = packed[0].files.map((file) => file.path);
    for (const file of ["dist/index.js", "dist/index.d.ts", ...BESIDE]) {
      assert.ok(files.includes(file), `${file} is missing`);
    }
    assert.ok(files.every((file) => file.startsWith("dist/") || BESIDE.includes(file)));

    writeFileSync(join(project, "package.json"), JSON.stringify({ private: true, type: "module" }));
    writeFileSync(join(project, "tsconfig.json"), JSON.stringify(TSCONFIG));
    await run("npm", ["install", "--offline", "--no-audit", "--no-fund", join(project, packed[0].filename)]);
    const installed = JSON.parse(readFileSync(join(project, "package-lock.json"), "utf8")) as {
      packages: object;
    };
    assert.deepEqual(
      Object.keys(installed.packages),
      ["", "node_modules/roundhouse-client"],
      "it depends on nothing",
    );

    // The compiler and the types of Node, which a project chooses itself.
    symlinkSync(join(root, "node_modules/@types"), join(project, "node_modules/@types"));
    symlinkSync(join(root, "node_modules/undici-types"), join(project, "node_modules/undici-types"));
    for (const name of EXAMPLES) cpSync(join(root, `examples/${name}.ts`), join(project, `${name}.ts`));
    await run(process.execPath, [join(root, "node_modules/typescript/bin/tsc")]);
    for (const name of EXAMPLES) checkOutput(name, await run(process.execPath, [`${name}.js`]));
  });

  test("Deno and Bun run the examples as they are written", async () => {
    const deno = ["run", "--quiet", "--no-config", "--node-modules-dir=manual", "--allow-env", "--allow-net"];
    for (const name of EXAMPLES) {
      checkOutput(name, await run(join(TOOLS, "deno"), [...deno, `${name}.ts`]));
      checkOutput(name, await run(join(TOOLS, "bun"), ["--no-install", `${name}.ts`]));
    }
  });

  test("it imports nothing that a browser does not have", async () => {
    const modules = await run("grep", ["-rhoE", `(from|import\\()\\s*"[^"]+"`, "dist"], root);
    for (const line of modules.trim().split("\n")) assert.match(line, /^from "\.\.?\//);
  });
});
