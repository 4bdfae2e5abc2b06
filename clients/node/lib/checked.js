// Messages as text, checked before they are sent: what a guard cannot read costs its round.
import { readFileSync } from "node:fs";
import { Ajv2020 } from "ajv/dist/2020.js";
import { LARGEST_BYTES } from "./connection.js";

/** @typedef {import("./messages.js").Proposal} Proposal */

const SCHEMA = JSON.parse(readFileSync(new URL("./messages.schema.json", import.meta.url), "utf8"));
const DEEPEST = 64;
const LABEL = /^[A-Za-z0-9_.:/-]{1,64}$/;
// Made from the published schema, which is held to its meta-schema where it is made: here that would double the start.
const ajv = new Ajv2020({ strict: false, allErrors: false, meta: false, validateSchema: false });
ajv.addSchema({ $id: "mesh", ...SCHEMA });

/** A message that nobody could read, or that is too large; `code` says which. Nothing was sent. */
export class Unsendable extends Error {
  /** @param {"malformed" | "too_large"} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.name = "Unsendable";
    this.code = code;
  }
}

/**
 * Return a message's JSON, checked by the schema and by what a schema cannot say.
 *
 * @param {string} definition its name in the schema: `Submit`, `control.reply`, `proposal.move` …
 * @param {object} message
 * @param {number} [besides] bytes of its subject and headers
 * @throws {Unsendable}
 */
export function checked(definition, message, besides = 512) {
  const body = asJson(message);
  const value = JSON.parse(body);
  if (definition === "proposal.move") hold(`move.${value.move?.move}`, value.move);
  hold(definition, value);
  for (const each of [value.value, value.move?.answer, value.move?.schema, ...valuesOf(value), ...valuesOf(value.move)]) {
    if (depthOf(each) > DEEPEST) throw new Unsendable("malformed", `more than ${DEEPEST} lists and objects within each other`);
  }
  for (const list of [value.facts, value.artifacts, value.move?.facts, value.move?.artifacts]) checkNamed(list);
  const bytes = Buffer.byteLength(body) + besides;
  if (bytes > LARGEST_BYTES) throw new Unsendable("too_large", `${bytes} bytes of at most ${LARGEST_BYTES}`);
  return body;
}

/** @param {{ facts?: { value: unknown }[] } | undefined} holder */
const valuesOf = (holder) => (holder?.facts ?? []).map((fact) => fact.value);

/** @param {string} definition @param {unknown} value */
function hold(definition, value) {
  const validate = ajv.getSchema(`mesh#/$defs/${definition}`);
  if (validate === undefined) throw new Unsendable("malformed", `there is no ${definition}`);
  if (validate(value)) return;
  const [error] = validate.errors ?? [];
  throw new Unsendable("malformed", `${definition}${error?.instancePath ?? ""} ${error?.message ?? "is wrong"}`);
}

/** @param {{ key?: string, name?: string, labels?: string[] }[] | undefined} list */
function checkNamed(list = []) {
  const names = list.map((each) => each.key ?? each.name ?? "");
  if (new Set(names).size !== names.length) throw new Unsendable("malformed", "a name stands twice");
  if (!names.every((name) => name.length > 0 && name.length <= 128)) {
    throw new Unsendable("malformed", "a name has 1 to 128 characters");
  }
  if (!list.every((each) => (each.labels ?? []).every((label) => LABEL.test(label)))) {
    throw new Unsendable("malformed", "a label is 1 to 64 characters of A-Z a-z 0-9 _ . : / -");
  }
}

/** Return JSON of a value; what JSON would change without a word is an error. @param {unknown} message */
function asJson(message) {
  /** @type {string | undefined} */
  let text;
  try {
    text = JSON.stringify(message, (key, value) => {
      if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`\`${key}\` is ${value}`);
      if (typeof value === "string" && /\p{Surrogate}/u.test(value)) throw new TypeError(`\`${key}\` is no text`);
      return value;
    });
  } catch (error) {
    throw new Unsendable("malformed", error instanceof Error ? error.message : String(error));
  }
  if (text === undefined) throw new Unsendable("malformed", "it is no JSON value");
  return text;
}

/** Return how many lists and objects lie within each other. @param {unknown} value @returns {number} */
function depthOf(value) {
  if (value === null || typeof value !== "object") return 0;
  return 1 + Object.values(value).reduce((deepest, inner) => Math.max(deepest, depthOf(inner)), 0);
}
