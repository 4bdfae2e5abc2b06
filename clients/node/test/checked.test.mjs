// What a guard could not read, or the bus not store, is found before it is sent.
import assert from "node:assert/strict";
import { test } from "node:test";
import { checked } from "../lib/checked.js";

const proposal = (move, more = {}) => ({ kind: "move", turn: "t", round: 0, move, ...more });
const transfer = (more) => proposal({ move: "transfer", to_agent: "b", summary: "x", ...more });
const nested = (levels) => JSON.parse("[".repeat(levels) + "]".repeat(levels));

const GOOD = {
  "a transfer": transfer(),
  "an answer of null": proposal({ move: "complete", answer: null }),
  "64 lists within each other": proposal({ move: "complete", answer: nested(64) }),
  "a fact with labels": transfer({ facts: [{ key: "k", value: 1, labels: ["a/b:c.d-e_F"] }] }),
  "a field that nobody knows": transfer({ later: true }),
};
const BAD = {
  "no summary": proposal({ move: "transfer", to_agent: "b" }),
  "null for a name": transfer({ to_agent: null }),
  "null for a list": transfer({ facts: null }),
  "no round": { kind: "move", turn: "t", move: { move: "complete", answer: 1 } },
  "no answer": proposal({ move: "complete", answer: undefined }),
  "an unknown move": proposal({ move: "dance" }),
  "no move at all": proposal(undefined),
  "a number that is none": proposal({ move: "complete", answer: { deep: [NaN] } }),
  "half a character": proposal({ move: "complete", answer: "\ud800" }),
  "what JSON has no form for": proposal({ move: "complete", answer: 1n }),
  "65 lists within each other": proposal({ move: "complete", answer: nested(65) }),
  "a key twice": transfer({ facts: [{ key: "k", value: 1 }, { key: "k", value: 2 }] }),
  "an empty key": transfer({ facts: [{ key: "", value: 1 }] }),
  "a label with a space": transfer({ facts: [{ key: "k", value: 1, labels: ["a b"] }] }),
  "a round with a fraction": { ...transfer(), round: 0.5 },
};

for (const [name, message] of Object.entries(GOOD)) {
  test(`fine: ${name}`, () => assert.deepEqual(JSON.parse(checked("proposal.move", message)), JSON.parse(JSON.stringify(message))));
}
for (const [name, message] of Object.entries(BAD)) {
  test(`malformed: ${name}`, () => assert.throws(() => checked("proposal.move", message), { name: "Unsendable", code: "malformed" }));
}

test("a message that the bus would not take is too large", () => {
  assert.throws(() => checked("proposal.move", proposal({ move: "complete", answer: "é".repeat(131_072) })), { code: "too_large" });
});
