// The package against a real server and a real guard, under kill -9.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { Client, GaveUp, NotTakenUp, requestId } from "../lib/index.js";
import { Mesh, PATIENCE_MS, within } from "./mesh.mjs";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const LONG = { timeout: PATIENCE_MS }; // nats.js gives an answer a second, which a busy machine may not keep to

describe("on a mesh", () => {
  let mesh;
  let client;
  before(async () => {
    mesh = await Mesh.open();
    client = await mesh.client();
  });
  after(() => mesh.close());

  const result = (request, how) => within(request.result(how), () => request.id);
  const types = async (request) => (await mesh.events(request.id)).map((event) => event.type);

  test("what is never taken up is told, and a wait can be given up", async () => {
    const unusable = client.request("hello", requestId("app").toLowerCase());
    await assert.rejects(result(unusable), (error) => error instanceof NotTakenUp && error.code === "unusable_id");
    // There is no agent yet: the first takes it up, and nobody waits for it.
    await assert.rejects(result(client.request("hello"), { signal: AbortSignal.timeout(300) }), GaveUp);
    assert.throws(() => client.request({ text: 7 }), /Submit/);
  });

  test("the agent and the client in README.md are what it says", async () => {
    const page = readFileSync(join(ROOT, "README.md"), "utf8");
    mkdirSync(join(mesh.directory, "node_modules", "@handoff-mesh"), { recursive: true });
    symlinkSync(ROOT, join(mesh.directory, "node_modules", "@handoff-mesh", "agent"));
    for (const [, name, code] of page.matchAll(/```js title="(.*?)"\n(.*?)```/gs)) writeFileSync(join(mesh.directory, name), code);
    const env = { ...process.env, NATS_URL: mesh.url, MESH_KEYS: join(mesh.directory, "keys") };
    const run = (file) => spawn(process.execPath, [file], { cwd: mesh.directory, env, stdio: ["ignore", "pipe", "inherit"] });
    const agent = run("agent.mjs");
    const ended = new Promise((resolve) => agent.once("close", resolve));
    try {
      await within(new Promise((resolve) => agent.stdout.once("data", resolve)), () => "ready");
      const client = run("client.mjs");
      let said = "";
      client.stdout.on("data", (data) => (said += data));
      assert.equal(await within(new Promise((resolve) => client.once("close", resolve)), () => said), 0);
      const [, shown] = page.match(/\$ node client.mjs\n(.*?)```/s);
      assert.equal(said, shown);
      agent.kill("SIGTERM");
      assert.equal(await within(ended, () => "its end"), 0);
    } finally {
      agent.kill("SIGKILL");
      await ended;
    }
  });

  test("a request is handed over after a refusal, handed back, and answered", async () => {
    await Promise.all([mesh.agent("front", "handsOver"), mesh.agent("records", "handsBack")]);
    const request = client.request("What do I owe?");
    const end = await result(request);
    assert.equal(end.answer, "You owe 12.99.");
    assert.equal(end.digest, request.digest);
    assert.deepEqual(await types(request), ["request.opened", "move.refused", "handoff.admitted", "handoff.admitted", "facts.withheld", "request.completed"]);
  });

  test("a process that is killed in an effect leaves it to the next, under the same key, and no read is repeated", async () => {
    const ledger = join(mesh.directory, "killed");
    writeFileSync(ledger, "");
    const first = await mesh.agent("front", "diesInAnEffect", { LEDGER: ledger, FIRST: "yes" });
    const request = client.request("refund");
    const ended = result(request);
    await first.until((said) => said.dying);
    await first.kill();
    await mesh.agent("front", "diesInAnEffect", { LEDGER: ledger });
    const end = await ended;
    assert.deepEqual(end.answer, { found: 7, paid: "paid" });
    assert.equal("report" in end, false); // the client is not told what the agent reported; the log keeps it
    const withheld = await mesh.event(request.id, (event) => event.type === "facts.withheld" && event.cause === end.cause);
    assert.deepEqual(withheld.report.actions, ["look_up", "refund"]);
    const [read, one, other, ...more] = readFileSync(ledger, "utf8").trim().split("\n");
    assert.equal(read, "look_up");
    assert.equal(one, other);
    assert.deepEqual(more, []);
  });

  test("an effect that cannot be asked about is in doubt after a kill, and goes by what a person says", async () => {
    const ledger = join(mesh.directory, "doubted");
    writeFileSync(ledger, "");
    const first = await mesh.agent("front", "diesInAnEffect", { LEDGER: ledger, FIRST: "yes", EFFECT: "once" });
    const request = client.request("refund");
    const ended = result(request);
    await first.until((said) => said.dying);
    await first.kill();
    await mesh.agent("front", "diesInAnEffect", { LEDGER: ledger, EFFECT: "once" });
    const doubted = await mesh.event(request.id, (event) => event.type === "effect.doubted");
    assert.deepEqual([doubted.effect.step, doubted.effect.action], ["0-1", "refund"]);
    const ops = await mesh.connect("ops");
    const settled = { kind: "settle", id: "s1", turn: doubted.turn, round: 0, outcome: "done", result: "by hand" };
    await ops.request(`mesh.ctl.ops.${request.id}`, JSON.stringify(settled), LONG);
    assert.deepEqual((await ended).answer, { found: 7, paid: "by hand" });
    assert.equal(readFileSync(ledger, "utf8").split("\n").filter((line) => line.startsWith("refund")).length, 1);
  });

  for (const [how, code] of [["tooLarge", "proposal_too_large"], ["malformed", "proposal_malformed"], ["notANumber", "proposal_malformed"], ["forbidden", "action_not_allowed"]]) {
    test(`what cannot be proposed fails its turn at once: ${how}`, async () => {
      await mesh.agent("front", how);
      const request = client.request("go");
      const end = await result(request);
      assert.equal(end.type, "request.failed");
      const failed = (await mesh.events(request.id)).find((event) => event.type === "turn.failed");
      assert.deepEqual([failed.error.code, failed.error.permanent, failed.sender], [code, true, "front"]);
    });
  }

  test("no record shows an argument that is secret", async () => {
    await mesh.agent("front", "paysByCard");
    const request = client.request("go");
    assert.equal((await result(request)).answer, "paid");
    const [{ work }] = await mesh.events(request.id);
    for (const step of ["0-0", "0-0d"]) {
      const subject = `mesh.step.front.${request.id}.${work.turn}.${step}`;
      const record = (await mesh.admin.request(`$JS.API.DIRECT.GET.STEPS-front.${subject}`, "", LONG)).json();
      assert.deepEqual([record.name, record.arguments, record.secret], ["refund", { cents: 5 }, ["card"]]);
    }
  });

  test("a tool's own no is an outcome", async () => {
    await mesh.agent("front", "saysNo");
    assert.equal((await result(client.request("go"))).answer, "unknown");
  });

  test("a question is answered by the client", async () => {
    await mesh.agent("front", "asks");
    const end = await result(client.request("go"), { onQuestion: ({ ask }) => `${ask.question} F-17` });
    assert.equal(end.answer, "Which invoice? F-17");
  });

  test("questions that wait at the same time are heard once each, and those left by a client that starts anew", async () => {
    await Promise.all([mesh.agent("front", "leads"), mesh.agent("records", "asksInATask")]);
    const request = client.request({ text: "go", policy: "tree" });
    const heard = [];
    const stop = new AbortController();
    const both = new Promise((resolve) => {
      const onQuestion = ({ ask }) => (heard.push(ask.question), heard.length === 2 && resolve(), new Promise(() => {}));
      assert.rejects(result(request, { onQuestion, signal: stop.signal }), GaveUp);
    });
    await within(both, () => JSON.stringify(heard));
    stop.abort(); // this client answers nothing
    assert.deepEqual([...heard].sort(), ["Which left?", "Which right?"]);
    const [first] = await request.questions();
    await request.reply(first, "at once");
    await mesh.event(request.id, (event) => event.type === "turn.resumed" && event.turn === first.turn);
    await within((async () => { while ((await request.questions()).length > 1) await new Promise((resolve) => setTimeout(resolve, 50)); })(), () => "one question less");
    const again = [];
    const end = await result((await mesh.client()).resume(request.id, request.body), { onQuestion: ({ ask }) => (again.push(ask.question), "later") });
    assert.deepEqual([...end.answer].sort(), ["at once", "later"]);
    assert.equal(again.length, 1);
    assert.notEqual(again[0], first.ask.question);
  });

  test("a client that hears no notes looks by itself", async () => {
    const nc = await mesh.connect("app");
    const deaf = new Client(new Proxy(nc, { get: (on, name) => (name === "subscribe" ? () => {} : typeof on[name] === "function" ? on[name].bind(on) : on[name]) }), "app");
    await mesh.agent("front", "answers");
    assert.equal((await result(deaf.request("hello"))).answer.text, "hello");
  });

  test("agent and client outlive a server that is killed while they wait", async () => {
    await mesh.agent("front", "asks");
    const request = client.request("go");
    let asked = () => {};
    const question = new Promise((resolve) => (asked = resolve));
    const ended = result(request, { onQuestion: async () => (asked(), await restarted, "after all") });
    const restarted = question.then(() => mesh.tell("kill-server")).then(() => mesh.tell("start-server"));
    assert.equal((await ended).answer, "after all");
  });

  test("a submit is said again until a guard has taken it up, and is one request", async () => {
    await mesh.agent("front", "answers");
    await mesh.tell("stop-guard");
    const request = client.request("hello");
    const ended = result(request);
    const said = await mesh.connect("admin");
    const queued = async () => (await said.request("$JS.API.STREAM.INFO.PROP-app", "", LONG)).json().state.messages;
    await within((async () => { while ((await queued()) < 2) await new Promise((resolve) => setTimeout(resolve, 100)); })(), () => "a second submit");
    await mesh.tell("start-guard");
    assert.equal((await ended).answer.text, "hello");
    assert.deepEqual(await types(request), ["request.opened", "facts.withheld", "request.completed"]);
  });

  test("a request is gone on with by id and bytes", async () => {
    await mesh.agent("front", "answers");
    const request = client.request("hello");
    await request.submit();
    assert.equal((await result(client.resume(request.id, request.body))).digest, request.digest);
    await assert.rejects(result(client.resume(request.id, '{"text":"other"}')), (error) => error instanceof NotTakenUp && error.code === "request_exists");
  });

  for (const [what, env] of [["", {}], [", even one that hears no notes", { DEAF: "yes" }]]) {
    test(`a cancel stops the code that runs, and the request ends${what}`, async () => {
      const agent = await mesh.agent("front", "waits", env);
      const request = client.request("go");
      const ended = result(request);
      await agent.until((said) => said.waits === request.id); // before its code runs, a cancel ends it unheard
      await request.cancel("changed my mind");
      assert.equal((await ended).type, "request.cancelled");
      assert.equal((await agent.until((said) => said.why)).why, "request.cancelled");
      await agent.until((said) => said.proposed === "nothing");
    });
  }

  test("a newer round stops the older one in the same process", async () => {
    const agent = await mesh.agent("front", "waits");
    const end = await result(client.request({ text: "go", policy: "hasty" }));
    assert.equal(end.answer, "second");
    assert.equal((await agent.until((said) => said.aborted === 0)).why, "a newer round began");
  });

  test("an event that nobody can read is buried, and the next is worked on", async () => {
    const agent = await mesh.agent("front", "answers");
    const admin = await mesh.connect("admin");
    const id = requestId("app");
    await admin.request(`mesh.evt.front.${id}`, "{no json", LONG);
    const strange = { v: 2, type: "request.opened", request: id, to: "front" };
    await admin.request(`mesh.evt.front.${id}`, JSON.stringify(strange), LONG);
    await admin.request(`mesh.evt.front.${id}`, JSON.stringify({ ...strange, to: "records" }), LONG);
    await agent.until((said) => said.why === "it is no JSON");
    await agent.until((said) => said.why === "it gives no work");
    await agent.until((said) => said.why === "it is another's");
    assert.equal((await result(client.request("hello"))).answer.text, "hello");
  });

  test("an offer that comes to the agent alone is left to others", async () => {
    const agent = await mesh.agent("front", "answers");
    const id = requestId("app");
    const offer = { v: 2, type: "task.offered", request: id, to: "front" };
    await (await mesh.connect("admin")).request(`mesh.evt.front.${id}`, JSON.stringify(offer), LONG);
    await agent.until((said) => said.left === "task.offered");
    assert.equal((await result(client.request("hello"))).answer.text, "hello");
  });

  test("an agent is found, and ends in good order", async () => {
    const agent = await mesh.agent("front", "answers");
    const ops = await mesh.connect("ops");
    assert.equal((await ops.request("$SRV.PING.front", "", LONG)).json().name, "front");
    agent.child.kill("SIGTERM");
    assert.equal(await within(agent.ended, () => "its end"), 0);
  });
});
