// Ids that a client makes, and digests.
import { createHash, randomBytes } from "node:crypto";

const CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/** Return a new request id of `client`. @param {string} client */
export function requestId(client) {
  let value = (BigInt(Date.now()) << 80n) | BigInt(`0x${randomBytes(10).toString("hex")}`);
  let text = "";
  for (let i = 0; i < 26; i++, value >>= 5n) text = CROCKFORD[Number(value & 31n)] + text;
  return `${client}_${text}`;
}

/** Return SHA-256 (hex) of a text's bytes. @param {string} text */
export const sha256 = (text) => createHash("sha256").update(text).digest("hex");

/** Return JSON with members in the order of their names, so that equal values are equal texts. @param {unknown} value */
export function canonical(value) {
  return JSON.stringify(value, (_, inner) =>
    inner !== null && typeof inner === "object" && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  ) ?? "null";
}
