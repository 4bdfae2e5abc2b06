"""`mesh dev` is where people live: what breaks is shown there, and what is saved is taken up."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from mesh.cli.exits import Exit
from mesh.local.project import write_starter
from tests.docs.pages import DOCS, blocks
from tests.system.terminal import READY, Folder, Running, wait_until_gone

LATE = """
from mesh.agent import agent

@agent(name="late")
async def late(turn):
    print("late got", turn.facts["text"])
    return turn.complete("better late")
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Folder, Running]]:
    """A starter project in which `mesh dev` runs."""
    folder = Folder(tmp_path_factory.mktemp("there") / "shop")
    write_starter(folder.path)
    with folder.running("dev", "--port", 0, until=READY) as dev:
        yield folder, dev
        children = dev.children()
        agents = (folder.path / "mesh.toml").read_text().count("module = ")
        assert len(children) == 2 + agents  # server and guard; no process of an older agent is left
        assert dev.end(signal.SIGINT) == Exit.DONE
        wait_until_gone(children)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def said_since(dev: Running, before: str, text: str) -> str:
    """Wait until `mesh dev` has said `text` after `before`; return what it said since."""
    dev.wait_until(lambda: text in dev.said[len(before) :], text)
    return dev.said[len(before) :]


def sent(folder: Folder, *asked: str) -> str:
    """Send, and return the answer."""
    done = folder.mesh("send", *asked)
    assert done.status == Exit.DONE, done
    return done.out


def test_each_service_has_its_line_as_it_is_ready(shop: tuple[Folder, Running]) -> None:
    _, dev = shop
    started = dev.said.partition("nats-server at")[0]
    names = re.findall(r"^  (\S+) +process \d+, log ", started, re.MULTILINE)
    assert names[0] == "nats-server"
    assert sorted(names[1:]) == ["front", "guard-1", "orders"]


def test_the_page_is_served_where_it_is_said_to_be(shop: tuple[Folder, Running]) -> None:
    _, dev = shop
    printed = re.search(r"^the page is at (http://127\.0\.0\.1:\d+/\?token=\S+)$", dev.said, re.MULTILINE)
    assert printed is not None, dev.said
    with httpx.Client(follow_redirects=True) as browser:
        shown = browser.get(printed[1])
        assert (shown.status_code, shown.url.path, shown.url.query) == (200, "/requests", b"")
        assert "read-only" not in shown.text
        assert ">front<" in browser.get(shown.url.join("/agents")).text
    assert httpx.get(shown.url.join("/agents")).status_code == 401  # another user of this machine


def test_a_bug_is_shown_with_the_readers_own_line_first(shop: tuple[Folder, Running]) -> None:
    folder, dev = shop
    code, before = folder.path / "shop" / "orders.py", dev.said
    edit(code, 'number = turn.facts["order"]', 'number = turn.facts["order"] + 1')
    said_since(dev, before, "orders.py changed: orders started again")
    place = r"the handler raised TypeError, at shop/orders\.py:\d+ in orders"
    with folder.running("send", "Where is order 1042?", until="; it is tried again\n") as sending:
        told = rf"^mesh: orders's turn broke: {place}; it is tried again$"
        assert re.search(told, sending.said, re.MULTILINE), sending.said
    request = folder.mesh("request", "ls", "--json").json[0]["request"]
    dev.wait_until(lambda: "escalation.raised" in folder.mesh("request", "show", request, "--json").out, "it")
    assert re.search(place, folder.mesh("why", request).out)
    shown = said_since(dev, before, "TypeError").partition("turn_failed")[2].splitlines()
    assert re.fullmatch(
        r"orders +│   shop/orders\.py:\d+ in orders: TypeError: can only concatenate .*", shown[1]
    )
    assert shown[2].endswith('number = turn.facts["order"] + 1')
    before = dev.said
    edit(code, 'number = turn.facts["order"] + 1', 'number = turn.facts["order"]')
    said_since(dev, before, "orders.py changed: orders started again")
    assert "1042" in sent(folder, "Where is order 1042?")


def test_what_is_no_python_is_told_once_and_the_old_code_goes_on(shop: tuple[Folder, Running]) -> None:
    folder, dev = shop
    code, before = folder.path / "shop" / "orders.py", dev.said
    good = code.read_text()
    code.write_text(good + "\ndef (\n")
    told = said_since(dev, before, "invalid syntax")
    assert f"{code}:{len(good.splitlines()) + 2}: invalid syntax: def (" in told
    assert "1042" in sent(folder, "Where is order 1042?")
    assert dev.said[len(before) :].count("invalid syntax") == 1
    code.write_text("import nothing_of_that_name\n" + good)
    said_since(dev, before, "orders cannot start with it; its old process goes on")
    said_since(dev, before, "no module 'nothing_of_that_name'")  # its log is shown a moment later
    assert dev.said[len(before) :].count("no module 'nothing_of_that_name'") == 1
    assert "1042" in sent(folder, "Where is order 1042?")
    before = dev.said
    code.write_text(good)
    said_since(dev, before, "orders.py changed: orders started again")


def test_send_says_at_once_that_a_person_has_it_and_why(shop: tuple[Folder, Running]) -> None:
    folder, _ = shop
    waits = ("send", "I want to talk to somebody")
    with folder.running(*waits, until="mesh: a person has it (No rule fits: I want to talk") as sending:
        assert "mesh human show app_" in sending.said  # long before --timeout, which is two minutes
        assert "has not ended" not in sending.said


def test_a_prompt_alone_is_taken_up(shop: tuple[Folder, Running]) -> None:
    folder, dev = shop
    before, prompt = dev.said, folder.path / "shop" / "prompts" / "front.md"
    first, _, text = prompt.read_text().partition("\n")
    assert first == "<!-- version: 1 -->"
    prompt.write_text(f"<!-- version: 2 -->\n{text}")
    said = said_since(dev, before, "front.md changed: front started again")
    assert "cannot start" not in said
    card = {each["name"]: each["card"] for each in folder.mesh("agent", "ls", "--json").json}["front"]
    assert card["prompt_version"] == "2"


def test_rules_and_the_fleet_file_are_taken_up(shop: tuple[Folder, Running]) -> None:
    folder, dev = shop
    before, fleet = dev.said, folder.path / "mesh.toml"
    edit(folder.path / "shop" / "rules.toml", "Please write its number.", "Its number, please.")
    said_since(dev, before, "rules.toml changed: front started again")
    assert sent(folder, "my order") == "Which order is it? Its number, please.\n"
    (folder.path / "shop" / "late.py").write_text(LATE)
    good = fleet.read_text()
    fleet.write_text(good + "\n[agents.late]\nmodul = 'shop.late:late'\n")
    said_since(dev, before, f"{fleet}: agents.late.modul: unknown key; did you mean `module`?; what ran")
    fleet.write_text(good + "\n[agents.late]\nmodule = 'shop.late:late'\n")
    said_since(dev, before, "mesh.toml changed: ")
    assert sent(folder, "hello", "--to", "late") == "better late\n"
    said_since(dev, before, "│ late got hello")


def test_at_a_terminal_each_service_has_its_own_colour_and_trouble_has_its(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "shop")
    write_starter(folder.path)
    for name in ("front", "orders"):
        code = folder.path / "shop" / f"{name}.py"
        code.write_text(f"{code.read_text()}\nprint('here is {name}')\n")
    edit(folder.path / "shop" / "orders.py", 'turn.facts["order"]', 'turn.facts["ordr"]')
    with folder.showing("dev", "--port", 0, until=READY) as dev:
        folder.mesh("send", "--timeout", 3, "Where is order 1042?")
        dev.wait_for("did you mean 'order'?")
        prefix = re.compile(r"^\x1b\[(\d+)m(\w[\w-]*) +│ \x1b\[0m(.*?)\r?$", re.MULTILINE)
        lines = prefix.findall(dev.said)
        colours = {name: {colour for colour, other, _ in lines if other == name} for _, name, _ in lines}
        assert {"front", "orders"} <= set(colours)
        assert all(len(each) == 1 for each in colours.values())  # one and the same all the time
        assert colours["front"] != colours["orders"]
        assert "here is front" in [text for _, name, text in lines if name == "front"]
        shown = [text for _, name, text in lines if name == "orders"]
        (warned,) = [text for text in shown if "warning: turn_failed" in text][:1]
        assert warned.startswith("\x1b[33m")  # yellow
        assert shown[shown.index(warned) + 1].startswith("\x1b[1m  shop/orders.py:")  # bold: one's own line
        (page,) = (block.text for block in blocks((DOCS / "dev.md").read_text()) if block.language == "text")
        warning, *told = page.splitlines()
        said = _in_one_line(dev.said)
        assert _in_one_line("\n".join(told)) in said
        assert all(word in said for word in _in_one_line(warning).split() if word != "…")  # in any order
        assert dev.end(signal.SIGINT) == Exit.DONE


def _in_one_line(said: str) -> str:
    """Return what a terminal got without colours, prefixes, numbers of lines, and where lines end."""
    plain = re.sub(r"\x1b\[\d+m", "", said)
    return " ".join(re.sub(r"^orders +│ |(?<=\.py:)\d+", "", plain, flags=re.MULTILINE).split())
