// Makes lib/messages.schema.json and lib/messages.d.ts from the published schema.  node scripts/generate.mjs [OUT]
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { compile } from "json-schema-to-typescript";

const ROOTS = ["Submit", "Proposal", "Control", "Event", "Move", "Assignment", "Handoff", "Fleet", "Notice", "Card", "DeadLetter", "Questions"];
const PUBLISHED = new URL("../../../protocol/schema/handoff-mesh.schema.json", import.meta.url);
const out = process.argv[2] ?? fileURLToPath(new URL("../lib/", import.meta.url));

const { $defs } = JSON.parse(readFileSync(PUBLISHED, "utf8"));

/** Return the names that `node` refers to. */
function* references(node) {
  if (Array.isArray(node)) for (const item of node) yield* references(item);
  else if (node !== null && typeof node === "object") {
    if (typeof node.$ref === "string") yield node.$ref.slice("#/$defs/".length);
    for (const item of Object.values(node)) yield* references(item);
  }
}

const needed = new Set(ROOTS);
for (const name of needed) for (const other of references($defs[name])) needed.add(other); // grows as it goes
const kept = Object.fromEntries(Object.entries($defs).filter(([name]) => needed.has(name)));

/** Return a schema in which only definitions have a title: each title, and each reference with a sibling, makes a type. */
const untitled = (node, name) => {
  if (Array.isArray(node)) return node.map((item) => untitled(item));
  if (node === null || typeof node !== "object") return node;
  if ("$ref" in node) return { $ref: node.$ref };
  const { title, ...rest } = node;
  const inner = Object.entries(rest).map(([key, value]) => [key, untitled(value)]);
  return { ...(name && { title: name }), ...Object.fromEntries(inner) };
};
const typed = {
  title: "AnyMessage",
  anyOf: ROOTS.map((name) => ({ $ref: `#/$defs/${name}` })),
  $defs: Object.fromEntries(Object.entries(kept).map(([name, schema]) => [name, untitled(schema, name)])),
};
const types = await compile(typed, "AnyMessage", {
  additionalProperties: false,
  bannerComment: "// Made by scripts/generate.mjs from the published schema. Do not edit.",
});

mkdirSync(out, { recursive: true });
writeFileSync(join(out, "messages.schema.json"), `${JSON.stringify({ $defs: kept }, null, 1)}\n`);
writeFileSync(join(out, "messages.d.ts"), types);
