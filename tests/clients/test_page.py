"""The code in docs/protocol.md is a client and an agent in Node.js, beside an agent in Python."""

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path

from mesh.agent import Move, Turn, agent
from mesh.fleet import parse_fleet
from mesh.replay.rejudge import rejudge
from mesh.testing import WholeMesh
from protocol import codec
from tests.docs.pages import DOCS, blocks

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
const answered = await nc.request(`$JS.API.DIRECT.GET.LOG.mesh.evt.${name}.${id}`);
console.log(JSON.stringify({ id, answer: answered.json().answer }));
await nc.close();
"""


@agent(name="records")
async def records(turn: Turn) -> Move:
    return turn.hand_back("looked up", facts={"balance": {"cents": 1299, "currency": "EUR"}})


async def test_the_code_on_the_page_put_together_is_an_agent_and_a_client(
    package: Path, tmp_path: Path
) -> None:
    async with WholeMesh([records], tmp_path, fleet=FLEET) as mesh:
        connecting, making_ids, client, working, pulling = _code_on_the_page(mesh.bus.url, tmp_path / "keys")
        as_client = connecting.replace('"front"', '"app"')
        (package / "page-agent.mjs").write_text(
            "\n".join((connecting, making_ids, working, pulling, "pull();"))
        )
        (package / "page-client.mjs").write_text("\n".join((as_client, making_ids, client, LAST_ANSWER)))
        front = await asyncio.create_subprocess_exec("node", "page-agent.mjs", cwd=package)
        try:
            app = await asyncio.create_subprocess_exec("node", "page-client.mjs", cwd=package, stdout=PIPE)
            async with asyncio.timeout(30):
                said, _ = await app.communicate()
        finally:
            front.kill()
            await front.wait()
        assert app.returncode == 0
        answered = json.loads(said)
        assert answered["answer"] == "12.99"
        happened = await mesh.events(answered["id"])
        assert rejudge([codec.encode(event) for event in happened]).same


def _code_on_the_page(url: str, keys: Path) -> list[str]:
    """Return the page's JavaScript, up to where it speaks of another library, for this mesh."""
    page = (DOCS / "protocol.md").read_text()
    code = [block.text for block in blocks(page) if block.language == "js"][:5]
    return [text.replace("`keys/", f"`{keys}/").replace("nats://127.0.0.1:4222", url) for text in code]
