"""Two files add a vendor of models: its own in `mesh/model/vendors/`, and a stand-in for its tests."""

import asyncio
import os
import re
import shutil
import signal
from pathlib import Path

from mesh.cli.exits import Exit
from tests.servers import ROOT
from tests.system.terminal import READY, Folder, environments
from tests.vendors.made_up import acme
from tests.vendors.made_up.stand_in import StubAcme
from tests.vendors.stand_in import calls, says
from tests.warm import COLD

MODEL = "mistral-small-latest"
CLERK = f"""
from mesh.agent import tool
from mesh.model import ClaudeAgent, Instructions

@tool
async def hours(day: str) -> str:
    "Return the hours of a day."
    return "eight to six"

clerk = ClaudeAgent("clerk", instructions=Instructions("1", "Answer."), tools=[hours], model="acme:{MODEL}")
"""
FLEET = f"""
name = "shop"
entry = "clerk"
[agents.clerk]
module = "clerk:clerk"
[clients.app]
[operators.ops]
[prices]
{MODEL} = "listed"
"""


async def test_a_vendor_is_added_by_its_file_and_its_stand_in(tmp_path: Path) -> None:
    product, folder = tmp_path / "product", Folder(tmp_path / "shop")
    shutil.copytree(ROOT / "mesh", product / "mesh", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(acme.__file__), product / "mesh/model/vendors/acme.py")
    folder.path.mkdir()
    (folder.path / "clerk.py").write_text(CLERK)
    (folder.path / "mesh.toml").write_text(FLEET)
    script = [calls(("hours", {"day": "Monday"})), says("From eight to six.")]
    async with StubAcme(script) as stub:
        own = {
            "PYTHONPATH": os.pathsep.join(map(str, (product, ROOT))),
            COLD: "1",  # a warm process has imported the product as it is
            acme.KEY: "key-of-acme",
            acme.SERVER: stub.url,
            "ANTHROPIC_API_KEY": "another's",
        }
        await asyncio.to_thread(asks, folder, own)
    assert (len(stub.asked), stub.unexpected, stub.refused) == (2, 0, [])


def asks(folder: Folder, own: dict[str, str]) -> None:
    unknown = folder.process("dev", "--port", 0, "--model", "parrot", **own)
    assert unknown.status == Exit.USAGE
    assert "scripted, acme, claude, openai, openai_responses or pinned" in unknown.err
    with folder.running("dev", "--port", 0, "--model", "acme", until=READY, **own) as dev:
        assert "model: acme (real models, paid for with your key)" in dev.said
        with_key = [name.split()[0] for name, each in environments(dev).items() if acme.KEY in each]
        assert with_key == ["agent"]
        sent = folder.process("send", "When are you open?", **own)
        assert (sent.status, sent.out) == (Exit.DONE, "From eight to six.\n"), (sent, dev.said)
        (request,) = folder.process("request", "ls", "--json", **own).json
        shown = folder.process("agent", "prompt", "clerk", "--request", request["request"], **own)
        assert "exact: this is what was sent, to the letter" in shown.out
        assert re.findall(r"^=== Acme's (\w+)$", shown.out, re.MULTILINE) == [
            *("settings", "tools", "system", "user", "assistant", "tool")
        ]
        (row,) = folder.process("cost", "--by", "model", "--json", **own).json["rows"]
        assert row["name"] == MODEL
        assert row["nano_dollars"] > 0
        dev.end(signal.SIGINT)
