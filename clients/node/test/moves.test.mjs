// What the moves come to, without a mesh.
import assert from "node:assert/strict";
import { test } from "node:test";
import { checked } from "../lib/checked.js";
import { NAMES, Turn } from "../lib/turn.js";

const WORK = {
  turn: "t", round: 0, path: ["front"], depth: 1,
  handoff: { move: "submit", from_agent: "app", to_agent: "front", summary: "x" },
  results: [{ name: "left", summary: "found" }],
  waiting: ["right"],
};
const turn = new Turn("app_1", WORK, undefined, new AbortController().signal, undefined, async () => {});
const facts = { card: "4111" };
const labels = { card: ["pii"] };
const listed = [{ key: "card", value: "4111", labels: ["pii"] }];

const MOVES = {
  transfer: [
    turn.transfer("b", { summary: "s", intent: "i", facts, labels, drop: ["d"], constraints: {}, return_to: "r", no_return: true }),
    { move: "transfer", to_agent: "b", summary: "s", intent: "i", facts: listed, drop: ["d"], constraints: {}, return_to: "r", no_return: true },
  ],
  handBack: [turn.handBack("s", { to: "r", facts, labels }), { move: "hand_back", summary: "s", to_agent: "r", facts: listed }],
  delegate: [
    turn.delegate([turn.task("n", { summary: "s", to: "b", facts, labels, carry: [], uses: ["m"] })], { join: 1, within_s: 5, cancel: ["o"] }),
    { move: "delegate", tasks: [{ name: "n", summary: "s", to_agent: "b", facts: listed, carry: [], uses: ["m"] }], join: 1, within_s: 5, cancel: ["o"] },
  ],
  deliver: [turn.deliver("s", { facts, labels, cancel_open: true }), { move: "deliver", summary: "s", facts: listed, cancel_open: true }],
  "ask the client": [turn.ask("q"), { move: "ask", to_agent: "app", question: "q" }],
  "ask a person": [
    turn.ask("q", { of: "human", schema: { type: "string" }, expires_s: 9 }),
    { move: "ask", to_agent: "human", question: "q", schema: { type: "string" }, expires_s: 9 },
  ],
  escalate: [turn.escalate("s", { facts, labels }), { move: "escalate", summary: "s", facts: listed }],
  complete: [turn.complete(1, { cancel_open: true }), { move: "complete", answer: 1, cancel_open: true }],
  "remember new facts": [turn.complete(1, { remember: facts, labels }), { move: "complete", answer: 1, remember: listed }],
  "remember facts of the turn": [turn.complete(1, { remember: ["card"] }), { move: "complete", answer: 1, remember_keys: ["card"] }],
  fail: [turn.fail("s", { code: "my.code" }), { move: "fail", reason: "s", code: "my.code" }],
};

for (const [name, [move, expected]] of Object.entries(MOVES)) {
  test(`a move is what a guard reads: ${name}`, () => {
    const proposal = { kind: "move", turn: "t", round: 0, move };
    assert.deepEqual(JSON.parse(checked("proposal.move", proposal)).move, expected);
  });
}

for (const [method, names] of Object.entries(NAMES)) {
  test(`a name that it does not have is an error: ${method}`, () => {
    assert.throws(() => turn[method]("x", { misspelt: 1 }), { name: "TypeError", message: new RegExp(`"misspelt"; it has ${names.join(", ")}`) });
    assert.throws(() => turn[method]("x", "a text"), { name: "TypeError" });
  });
}

test("a lead finds its results by name", () => {
  assert.deepEqual([turn.results.left.summary, turn.waiting], ["found", ["right"]]);
});

test("what is secret is an argument that there is", async () => {
  for (const secret of ["card", ["cord"], [1]]) {
    await assert.rejects(turn.call("pay", { card: "4111" }, () => {}, { secret }), { name: "TypeError" });
  }
});
