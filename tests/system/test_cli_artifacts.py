"""`mesh send --artifact` as docs/artifacts.md types it: the store has the bytes, the request names them."""

import shlex

from mesh.agent import Move, Turn, agent
from mesh.cli.exits import Exit
from tests.docs.pages import DOCS, commands, section
from tests.guard.stage import Stage
from tests.system.office import Office

SAVED = "mesh artifact save scan.pdf"
GIVEN = "mesh-artifact:sha256/9f86d0…"


@agent(name="a")
async def reader(turn: Turn) -> Move:
    (scan,) = turn.handoff.artifacts
    return turn.complete({"name": scan.name, "uri": scan.uri})


async def test_the_commands_of_the_page_send_a_file_and_fetch_it(office: Office, stage: Stage) -> None:
    (office.folder.path / "scan.pdf").write_bytes(b"%PDF")
    await stage.runtime(reader)
    (send, _), (get, _) = commands(section((DOCS / "artifacts.md").read_text(), "In a client"))
    saved = await office.mesh(*shlex.split(SAVED)[1:], who="c1")
    uri = saved.out.strip()
    assert saved.status == Exit.DONE, saved
    sent = await office.mesh(*shlex.split(send.replace(f"$({SAVED})", uri))[1:], who="c1")
    assert sent.status == Exit.DONE, sent
    assert sent.json == {"name": "scan", "uri": uri}
    got = await office.mesh(*shlex.split(get.replace(GIVEN, uri))[1:], who="c1")
    assert got.status == Exit.DONE, got
    assert (office.folder.path / "report.pdf").read_bytes() == b"%PDF"
