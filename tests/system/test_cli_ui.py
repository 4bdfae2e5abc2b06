"""`mesh ui`: it serves until it is told to end, and says what is wrong with how it was started."""

import re
import shlex
from pathlib import Path

import httpx
import pytest

from mesh.cli.exits import Exit
from tests.certain import known
from tests.docs.pages import DOCS, commands
from tests.docs.reader import require_installed
from tests.servers import ran
from tests.system.office import Office

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("starlette", "uvicorn"):
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing())
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *rest: None if name in ("starlette", "uvicorn") else found(name, *rest)
sys.argv = ["mesh", "ui"]
from mesh.cli import main
main()
"""


def test_without_the_extra_it_says_how_to_get_it() -> None:
    said = ran("-c", WITHOUT)
    assert said.returncode == Exit.USAGE
    assert said.stderr == (
        "mesh: the page needs starlette, uvicorn: pip install 'handoff-mesh[ui]' [ui.not_installed]\n"
    )


async def test_it_serves_until_it_is_told_to_end(office: Office, tmp_path: Path) -> None:
    request = await office.escalated()
    (install, _), (command, _) = commands((DOCS / "web-ui.md").read_text())
    require_installed(shlex.split(install)[2:])
    typed = shlex.split(command)[1:]
    arguments = (*typed, "--port", "0", "--allow-write", "--by", "Kim", "--store", tmp_path / "list")
    async with office.running(*arguments, until="the page is at") as page:
        address = re.search(r"http://\S+", page.said)
        printed = httpx.URL(known(address)[0])
        async with httpx.AsyncClient(base_url=printed.join("/")) as browser:
            assert (await browser.get(f"/people/{request}")).status_code == 401  # others on this machine
            assert (await browser.get(printed)).status_code == 303
            shown = await browser.get(f"/people/{request}")
        assert shown.status_code == 200
        assert "Kim" in shown.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "--token-file"),
        (("--token-file", "nothing"), "cannot be read"),
        (("--token-file", "short"), "16 characters"),
        (("--host", "203.0.113.7", "--token-file", "token"), "cannot be at 203.0.113.7"),
    ],
)
async def test_what_would_be_unsafe_or_cannot_be_is_refused(
    office: Office, arguments: tuple[str, ...], words: str
) -> None:
    (office.folder.path / "short").write_text("secret\n")
    (office.folder.path / "token").write_text("a token that is long enough\n")
    said = await office.process("ui", "--port", "0", *arguments)
    assert (said.status, said.out) == (Exit.USAGE, "")
    assert words in said.err
