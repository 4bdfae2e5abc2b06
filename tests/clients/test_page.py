"""The code in docs/wire/ (client.md, agent.md) is a client and an agent in Node.js, and keeps to the page."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import NamedTuple

import pytest

from mesh.agent import Move, Turn, agent
from mesh.fleet.file import parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.testing import LocalMesh
from protocol.wire import codec
from tests.clients.conftest import tried
from tests.docs.pages import DOCS, blocks
from tests.servers import PATIENCE_S

FLEET = parse_fleet("""
name = "desk"
entry = "front"
[agents.front]
to = ["records"]
[agents.records]
intents = ["look_up"]
[clients.app]
""").fleet
LAST_ANSWER = """
const answered = await nc.request(`$JS.API.DIRECT.GET.LOG.mesh.evt.${name}.${id}`, "", { timeout: 30_000 });
console.log(JSON.stringify({ id, answer: answered.json().answer }));
await nc.close();
"""
OBEDIENT = """
async function decide(work) {
  const facts = Object.fromEntries(work.handoff.facts.map(({ key, value }) => [key, value]));
  const newest = work.past?.at(-1);
  const complete = (answer) => ({ move: "complete", answer });
  const transfer = (to_agent) => ({ move: "transfer", to_agent, summary: "look" });
  switch (facts.do) {
    case "complete": return complete(facts.text);
    case "refused": return newest ? complete(newest.refusal.rule) : transfer("nobody");
    case "transfer":
      return work.handoff.move === "hand_back" ? complete(facts.found) : transfer("counterpart");
    case "ask": return newest ? complete(newest.reply) : { move: "ask", to_agent: "app", question: "What?" };
    case "large": return complete("x".repeat(300_000));
    case "wait": await sleep(facts.for_s * 1000); return complete("waited");
  }
  throw new Error("broken");
}
"""
"""What the page wants of an agent that is checked."""


@agent(name="records")
async def records(turn: Turn) -> Move:
    return turn.hand_back("looked up", facts={"balance": {"cents": 1299, "currency": "EUR"}})


async def test_the_code_on_the_page_put_together_is_an_agent_and_a_client(
    package: Path, tmp_path: Path
) -> None:
    async with LocalMesh([records], tmp_path, fleet=FLEET) as mesh:
        code, keys = _code_on_the_page(), tmp_path / "keys"
        (package / "page-agent.mjs").write_text(code.agent)
        (package / "page-client.mjs").write_text(code.as_client(mesh.bus.url, keys))
        own = {"NATS_URL": mesh.bus.url, "MESH_NAME": "front", "MESH_CREDENTIALS": str(keys / "front.nk")}
        front = await asyncio.create_subprocess_exec(
            "node", "page-agent.mjs", cwd=package, env=os.environ | own
        )
        try:
            app = await asyncio.create_subprocess_exec("node", "page-client.mjs", cwd=package, stdout=PIPE)
            async with asyncio.timeout(PATIENCE_S):
                said, _ = await app.communicate()
        finally:
            front.kill()
            await front.wait()
        assert app.returncode == 0
        answered = json.loads(said)
        assert answered["answer"] == "12.99"
        happened = await mesh.events(answered["id"])
        assert rejudge([codec.encode(event) for event in happened]).same


@pytest.mark.timeout(600)
async def test_the_agent_on_the_page_keeps_to_the_protocol(package: Path, tmp_path: Path) -> None:
    agent = _code_on_the_page().agent
    assert sum(map(bool, agent.split("\n"))) <= 60
    own = agent[agent.index("async function decide") : agent.index("const {")]
    text = replaced(agent, (own, OBEDIENT))
    (package / "page-checked.mjs").write_text(text)
    command = f"exec node {package / 'page-checked.mjs'}"
    assert [finding for finding in await tried(command, tmp_path) if not finding.ok] == []


class Code(NamedTuple):
    """The pages' JavaScript, in the order in which it stands there."""

    connecting: str
    making_ids: str
    helpers: str
    client: str
    agent: str

    def as_client(self, url: str, keys: Path) -> str:
        """Return the client `app` of this mesh."""
        whole = "\n".join((self.connecting, self.making_ids, self.helpers, self.client, LAST_ANSWER))
        shown = (('"front"', '"app"'), ("`keys/", f"`{keys}/"), ("nats://127.0.0.1:4222", url))
        return replaced(whole, *shown)


def replaced(text: str, *shown: tuple[str, str]) -> str:
    """Return a text with other words in it, each of which it has."""
    for before, after in shown:
        assert before in text, before
        text = text.replace(before, after)
    return text


def _code_on_the_page() -> Code:
    page = "".join((DOCS / "wire" / name).read_text() for name in ("client.md", "agent.md"))
    return Code(*(block.text for block in blocks(page) if block.language == "js"))
