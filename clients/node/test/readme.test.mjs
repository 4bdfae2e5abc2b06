// The example in README.md, as it stands there.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { Mesh, within } from "./mesh.mjs";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
let mesh;
before(async () => (mesh = await Mesh.open()));
after(() => mesh.close());

test("the agent and the client of the page are what the page says", async () => {
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
