// What is generated is what is stored, and types hold.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("..", import.meta.url));

test("types and schema are those of the published schema", () => {
  const made = mkdtempSync(join(tmpdir(), "generated-"));
  try {
    execFileSync(process.execPath, ["scripts/generate.mjs", made], { cwd: ROOT });
    for (const name of ["messages.d.ts", "messages.schema.json"]) {
      const stored = readFileSync(join(ROOT, "lib", name), "utf8");
      assert.equal(readFileSync(join(made, name), "utf8"), stored, "run `npm run generate`");
    }
  } finally {
    rmSync(made, { recursive: true });
  }
});

test("the package and what its users write have the types that they should", () => {
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.json"], { cwd: ROOT, stdio: "inherit" });
});
