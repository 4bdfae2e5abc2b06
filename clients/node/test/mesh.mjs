// A mesh of a test file's own, and agents in processes of their own that can be killed.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";
import { Client, connectAs } from "../lib/index.js";

const HERE = dirname(fileURLToPath(import.meta.url));
/** How long a test waits for anything. What takes so long on a busy machine will never come. */
export const PATIENCE_MS = 120_000;

/** A process that says one JSON object a line. */
export class Speaker {
  said = [];
  #waiting = [];

  constructor(command, args, options = {}) {
    this.child = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"], ...options });
    this.ended = new Promise((resolve) => this.child.once("close", resolve));
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      this.said.push(JSON.parse(line));
      this.#waiting = this.#waiting.filter((look) => !look());
    });
  }

  get alive() {
    return this.child.exitCode === null && this.child.signalCode === null;
  }

  /** Return the first thing said, from `from` on, that `fits`. */
  async until(fits, from = 0) {
    const found = () => this.said.slice(from).find(fits);
    return await within(new Promise((resolve) => {
      const look = () => {
        const what = found();
        if (what !== undefined) resolve(what);
        return what !== undefined;
      };
      if (!look()) this.#waiting.push(look);
    }), () => `${fits}; it said ${JSON.stringify(this.said)}`);
  }

  async kill() {
    this.child.kill("SIGKILL");
    await this.ended;
  }
}

/** Return what a promise comes to, or fail after a while. */
export async function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${PATIENCE_MS} ms: ${what()}`)), PATIENCE_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

export class Mesh {
  #agents = new Map();
  #connections = [];

  static async open() {
    const mesh = new Mesh();
    mesh.directory = mkdtempSync(join(tmpdir(), "mesh-"));
    const [python, cwd] = [process.env.MESH_PYTHON, process.env.MESH_ROOT];
    if (!python || !cwd) throw new Error("MESH_PYTHON and MESH_ROOT say where a mesh comes from: run these tests by pytest tests/clients");
    mesh.process = new Speaker(python, ["-m", "tests.clients.mesh_process", mesh.directory], { cwd });
    mesh.url = (await mesh.process.until((said) => said.url)).url;
    return mesh;
  }

  keys(name) {
    return join(this.directory, "keys", `${name}.nk`);
  }

  /** Tell the mesh something: `kill-server`, `start-server`, `stop-guard`, `start-guard`. */
  async tell(command) {
    const from = this.process.said.length;
    this.process.child.stdin.write(`${command}\n`);
    await this.process.until((said) => said.did === command, from);
  }

  async connect(name) {
    const nc = await connectAs(name, { servers: this.url, seedFile: this.keys(name) });
    this.#connections.push(nc);
    return nc;
  }

  async client() {
    return new Client(await this.connect("app"), "app");
  }

  /** Return a process of `front` or another agent that does what `how` names: the one before, if it has this `env`. */
  async agent(name, how, env = {}) {
    const before = this.#agents.get(name);
    if (before?.alive && isDeepStrictEqual(before.env, env)) {
      before.said = [];
      before.child.stdin.write(`${how}\n`);
      await before.until((said) => said.does === how);
      return before;
    }
    if (before !== undefined) {
      await before.kill();
      await this.#forgotten(name);
    }
    const told = { ...process.env, NATS_URL: this.url, MESH_NAME: name, MESH_CREDENTIALS: this.keys(name), HOW: how, ...env };
    const agent = new Speaker(process.execPath, [join(HERE, "agents.mjs")], { env: told });
    this.#agents.set(name, Object.assign(agent, { env }));
    await agent.until((said) => said.ready);
    return agent;
  }

  /** Wait until the server knows that a killed agent is gone. It gives work to a pull of the dead until then. */
  async #forgotten(name) {
    const nc = this.ops ??= await this.connect("ops");
    const gone = async () => {
      for (;;) {
        const error = await nc.request(`$SRV.PING.${name}`, "", { timeout: 250 }).catch((error) => error);
        if (error.isNoResponders?.()) return;
        if (error instanceof Error && error.name !== "TimeoutError") throw error;
      }
    };
    await within(gone(), () => `${name} is still connected`);
  }

  /** Return a request's events. */
  async events(request) {
    const nc = this.admin ??= await this.connect("admin");
    const events = [];
    for (let seq = 1; ; ) {
      const asked = JSON.stringify({ seq, next_by_subj: `mesh.evt.*.${request}` });
      const found = await nc.request("$JS.API.DIRECT.GET.LOG", asked, { timeout: PATIENCE_MS });
      if (found.headers?.code) return events;
      events.push(found.json());
      seq = Number(found.headers.get("Nats-Sequence")) + 1;
    }
  }

  /** Wait until a request's events have one that `fits`; return it. */
  async event(request, fits) {
    let events = [];
    const found = (async () => {
      for (;;) {
        events = await this.events(request);
        const event = events.find(fits);
        if (event) return event;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    })();
    return await within(found, () => `${fits}; there is ${JSON.stringify(events.map((event) => event.type))}`);
  }

  async close() {
    await Promise.all(Array.from(this.#agents.values(), (agent) => agent.kill()));
    await Promise.all(this.#connections.map((nc) => nc.close()));
    this.process.child.stdin.end();
    await this.process.ended;
    rmSync(this.directory, { recursive: true, force: true });
  }
}
