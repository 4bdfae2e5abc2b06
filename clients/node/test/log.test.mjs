// The hash chain of kept logs, whole, redacted and changed.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { verify } from "../lib/index.js";

const ROOT = process.env.MESH_ROOT ?? fileURLToPath(new URL("../../..", import.meta.url));
const GOLDEN = join(ROOT, "tests", "golden");
const linesOf = (name) => readFileSync(join(GOLDEN, name), "utf8").trimEnd().split("\n");
const sha256 = (text) => createHash("sha256").update(text).digest("hex");
const LOGS = readdirSync(join(GOLDEN, "logs"));
const STORY = linesOf("logs/long-story.jsonl");

function redacted(line) {
  const { type, v, request, n, prev } = JSON.parse(line);
  return JSON.stringify({ type, v, request, n, prev, redacted: sha256(line) });
}

test("every kept log holds", () => {
  assert.ok(LOGS.length > 5);
  for (const name of LOGS) {
    const lines = linesOf(`logs/${name}`);
    assert.deepEqual(verify(lines), { events: lines.length, breaks: [], redacted: [] }, name);
  }
});

test("a changed event breaks the link after it", () => {
  const changed = [...STORY.slice(0, 3), `${STORY[3]} `, ...STORY.slice(4)];
  assert.deepEqual(verify(changed).breaks, [4]);
  assert.deepEqual(verify(STORY.slice(1)).breaks, STORY.slice(1).map((_, n) => n));
});

test("around redacted events every link holds, and it says which they are", () => {
  const some = STORY.map((line, n) => (n % 5 === 2 ? redacted(line) : line));
  assert.deepEqual(verify(some), { events: STORY.length, breaks: [], redacted: [2, 7, 12, 17, 22] });
  some[3] = some[3].replace('"at":', '"at":1');
  assert.deepEqual(verify(some).breaks, [4]);
});

test("a log of an earlier form is named", () => {
  assert.throws(() => verify(linesOf("forms/v1.jsonl")), /event 0 is of form 1, of an earlier build/);
});
