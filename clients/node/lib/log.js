// The form of events, and the hash chain of a request's log.
import { sha256 } from "./ids.js";

/** The form (`v`) of the events that this package reads: that of the schema. @type {import("./messages.js").RequestOpened["v"]} */
export const FORM = 2;

/** @param {string} which @param {unknown} v Return why an event of another form is not read. */
export const otherForm = (which, v) =>
  v === 1
    ? `${which} is of form 1, of an earlier build, and this package reads form ${FORM}: read it with the build that wrote it`
    : `${which} is of another form (${JSON.stringify(v)}) than this package reads (${FORM})`;

/**
 * Check the hash chain of one request.
 *
 * A redacted event has its digest in `redacted`; every other link is checked as if it were whole.
 *
 * @param {Iterable<string>} lines its events as they are stored, in order from the first; of an export without line ends
 * @returns {{ events: number, breaks: number[], redacted: number[] }} `breaks`: numbers of events that do not follow the one before
 * @throws {SyntaxError} for a line that is no JSON
 * @throws {Error} for an event of form 1, which had another chain
 */
export function verify(lines) {
  const found = { events: 0, breaks: /** @type {number[]} */ ([]), redacted: /** @type {number[]} */ ([]) };
  let prev = "0".repeat(64);
  for (const line of lines) {
    const event = JSON.parse(line);
    if (event.v === 1) throw new Error(otherForm(`event ${event.n}`, event.v));
    if (event.n !== found.events || event.prev !== prev) found.breaks.push(found.events);
    if (event.redacted) found.redacted.push(found.events);
    prev = event.redacted || sha256(line);
    found.events += 1;
  }
  return found;
}
