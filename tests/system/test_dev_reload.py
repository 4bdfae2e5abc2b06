"""`mesh dev` is where people live: what breaks is shown there, and what is saved is taken up."""

import re
import shutil
import signal
import socket
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
    said_since(dev, before, "orders.py changed: all 2 agents run the new code, ")
    place = r"the handler raised TypeError, at shop/orders\.py:\d+ in orders"
    with folder.running("send", "Where is order 1042?", until="; it is tried again\n") as sending:
        told = rf"^mesh: orders's turn broke: {place}: can only concatenate .*; it is tried again$"
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
    said_since(dev, before, "orders.py changed: all 2 agents run the new code, ")
    assert "1042" in sent(folder, "Where is order 1042?")


def test_an_exception_in_an_effect_is_shown_with_its_text_and_line_wherever_one_looks(
    shop: tuple[Folder, Running],
) -> None:
    folder, dev = shop
    code, before = folder.path / "shop" / "orders.py", dev.said
    good = code.read_text()
    edit(code, "@tool\n", '@tool(effect="once")\n')
    edit(code, "    if number not in SHELF:\n", '    raise ConnectionError("the bank says: \\x1b[31mno")\n')
    edit(code, '        raise ToolError(f"there is no order {number}")\n', "")
    said_since(dev, before, "orders.py changed: all 2 agents run the new code, ")
    place = r"find_order raised ConnectionError, at shop/orders\.py:\d+ in find_order"
    told = rf"{place}: the bank says: \\x1b\[31mno"
    with folder.running("send", "Where is order 1042?", until=": mesh doubt ls\n") as sending:
        assert re.search(
            rf"^mesh: nobody knows if find_order happened \({told}\)", sending.said, re.MULTILINE
        )
    request = folder.mesh("request", "ls", "--json").json[0]["request"]
    for command in (("why", request), ("request", "show", request), ("human", "show", request)):
        assert re.search(told, folder.mesh(*command).out), command
    assert re.search(told, folder.mesh("doubt", "ls", "--json").json[0]["error"])
    shown = said_since(dev, before, "effect_in_doubt").partition("effect_in_doubt")[2].splitlines()
    assert re.fullmatch(
        r"orders +│   shop/orders\.py:\d+ in find_order: ConnectionError: the bank says: .*", shown[1]
    )
    before = dev.said
    code.write_text(good)
    said_since(dev, before, "orders.py changed: all 2 agents run the new code, ")
    assert folder.mesh("doubt", "settle", request, "--done", "--result", "was paid").status == Exit.DONE


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
    said_since(dev, before, "orders.py changed: orders cannot start with it; its old process goes on")
    said_since(dev, before, "orders.py changed: front runs the new code, ")
    said_since(dev, before, "no module 'nothing_of_that_name'")  # its log is shown a moment later
    assert dev.said[len(before) :].count("no module 'nothing_of_that_name'") == 1
    assert "1042" in sent(folder, "Where is order 1042?")
    before = dev.said
    code.write_text(good)
    said_since(dev, before, "orders.py changed: all 2 agents run the new code, ")


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
    said = said_since(dev, before, "front.md changed: all 2 agents run the new code, ")
    assert "cannot start" not in said
    card = {each["name"]: each["card"] for each in folder.mesh("agent", "ls", "--json").json}["front"]
    assert card["prompt_version"] == "2"


def test_rules_and_the_fleet_file_are_taken_up(shop: tuple[Folder, Running]) -> None:
    folder, dev = shop
    before, fleet = dev.said, folder.path / "mesh.toml"
    edit(folder.path / "shop" / "rules.toml", "Please write its number.", "Its number, please.")
    said_since(dev, before, "rules.toml changed: all 2 agents run the new code, ")
    assert sent(folder, "my order") == "Which order is it? Its number, please.\n"
    (folder.path / "shop" / "late.py").write_text(LATE)
    good = fleet.read_text()
    fleet.write_text(good + "\n[agents.late]\nmodul = 'shop.late:late'\n")
    said_since(dev, before, f"{fleet}: agents.late.modul: unknown key; did you mean `module`?; what ran")
    fleet.write_text(good + "\n[agents.late]\nmodule = 'shop.late:late'\n")
    said_since(dev, before, "mesh.toml changed: ")
    assert sent(folder, "hello", "--to", "late") == "better late\n"
    said_since(dev, before, "│ late got hello")


MEETS = """
import os as _os, pathlib as _pathlib, time as _time
_met = _pathlib.Path(__file__).parent / "met"
_met.mkdir(exist_ok=True)
(_met / str(_os.getpid())).touch()
_until = _time.monotonic() + {patience_s}
while len(list(_met.iterdir())) < 2:
    assert _time.monotonic() < _until, "the other agent does not start before this one has"
    _time.sleep(0.02)
"""
"""At the head of an agent's code: it starts only beside another that starts."""


def test_agents_start_side_by_side_and_one_line_says_that_all_run_the_new_code(
    shop: tuple[Folder, Running],
) -> None:
    folder, dev = shop
    codes = [folder.path / "shop" / name for name in ("front.py", "orders.py")]
    good, before = [code.read_text() for code in codes], dev.said
    for code, text in zip(codes, good, strict=True):
        code.write_text(MEETS.format(patience_s=20) + text)
    said = said_since(dev, before, "agents run the new code, ")
    assert "cannot start" not in said
    assert re.search(r"\.py changed: all \d agents run the new code, \d+\.\d s$", said, re.MULTILINE)
    before = dev.said
    for code, text in zip(codes, good, strict=True):
        code.write_text(text)
    said_since(dev, before, "agents run the new code, ")


def test_what_no_agent_reads_starts_nothing(shop: tuple[Folder, Running]) -> None:
    folder, dev = shop
    before, hidden = dev.said, folder.path / ".idea"
    hidden.mkdir(exist_ok=True)
    (hidden / "workspace.py").write_text("here = 1\n")
    (folder.path / "shop" / ".draft.py").write_text("here = 1\n")
    (folder.path / "stricter.toml").write_text("max_depth = 2\nmax_refusals = 1\n")
    prompt = folder.path / "shop" / "prompts" / "front.md"
    prompt.write_text(f"{prompt.read_text()}\nBe brief.\n")  # comes after them, and is taken up with them
    said = said_since(dev, before, "agents run the new code, ")
    assert re.fullmatch(r"mesh: front\.md changed: all \d agents run the new code, \d+\.\d s\n", said)


def test_a_broken_fleet_file_hides_no_other_mistake(shop: tuple[Folder, Running]) -> None:
    folder, dev = shop
    broken = [folder.path / name for name in ("mesh.toml", "shop/front.py", "shop/orders.py")]
    good, before = [file.read_text() for file in broken], dev.said
    for file, text, mistake in zip(broken, good, ("[agents.", "def (", "class ("), strict=True):
        file.write_text(f"{text}\n{mistake}\n")
    for file in broken:
        said_since(dev, before, f"{file}:")
    assert "run the new code" not in dev.said[len(before) :]
    before = dev.said
    for file, text in zip(broken, good, strict=True):
        file.write_text(text)
    said_since(dev, before, "agents run the new code, ")


def test_a_second_dev_in_the_folder_says_which_one_runs_and_where_its_page_is(
    shop: tuple[Folder, Running],
) -> None:
    folder, dev = shop
    second = folder.process("dev")
    assert second.status == Exit.USAGE
    page = re.search(r"^the page is at (\S+)$", dev.said, re.MULTILINE)
    assert page is not None
    runs = f"`mesh dev` already runs here: it is process {dev.pid}, its page is at {page[1]}"
    assert second.err == f"mesh: {runs} [cli.usage]\n"
    assert second.out == ""
    assert "1042" in sent(folder, "Where is order 1042?")


def test_a_command_in_another_project_below_is_not_taken_by_this_one(shop: tuple[Folder, Running]) -> None:
    folder, _ = shop
    other = Folder(folder.path / "other")
    write_starter(other.path)
    before = folder.mesh("request", "ls", "--json").json
    done = other.process("send", "Where is order 1042?")
    assert done.status == Exit.USAGE
    assert f"`mesh dev` that runs in {folder.path} serves the fleet 'shop'" in done.err
    assert f"{other.path / 'mesh.toml'} is the fleet 'other'" in done.err
    assert folder.mesh("request", "ls", "--json").json == before
    shutil.rmtree(other.path)


def test_a_fleet_file_that_is_broken_from_the_start_hides_no_mistake_in_code(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "shop")
    write_starter(folder.path)
    for name, mistake in (
        ("mesh.toml", "[agents.late]\nmodul = 1"),
        ("shop/front.py", "def ("),
        (".x.py", "("),
    ):
        with (folder.path / name).open("a") as file:
            file.write(f"\n{mistake}\n")
    done = folder.process("dev", "--port", 0)
    assert done.status == Exit.USAGE
    assert re.search(r"shop/front\.py:\d+: invalid syntax: def \($", done.err, re.MULTILINE), done.err
    assert "agents.late.modul: unknown key" in done.err
    assert ".x.py" not in done.err


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "shop")
    write_starter(folder.path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = folder.process("dev", "--port", port)
    assert done.status == Exit.USAGE
    assert (
        done.err == f"mesh: port {port} is taken: choose another with --port, or leave it out [cli.usage]\n"
    )
    assert done.out == ""


def test_a_fleet_without_clients_has_one_while_dev_runs(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "shop")
    write_starter(folder.path)
    fleet = folder.path / "mesh.toml"
    edit(fleet, "[clients.app]       # who may submit requests\n", "")
    with folder.running("dev", "--port", 0, until=READY) as dev:
        assert "the fleet file names no client: app is one while this runs" in dev.said
        assert "1042" in sent(folder, "Where is order 1042?")
        found = {each["check"] for each in folder.mesh("doctor", "--json").json if each["state"] == "found"}
        assert "streams" not in found
        assert "up to date with shop" in folder.mesh("setup").out
        before = dev.said
        fleet.write_text(f"{fleet.read_text()}\n[clients.web]\n")
        said_since(dev, before, "mesh.toml changed: ")
        assert "1042" in sent(folder, "Where is order 1042?", "--as", "web")
        assert dev.end(signal.SIGINT) == Exit.DONE


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
        shown_there = blocks((DOCS / "running.md").read_text())
        (page,) = (block.text for block in shown_there if (block.language, block.kind) == ("text", ""))
        warning, *told = page.splitlines()
        said = _in_one_line(dev.said)
        assert _in_one_line("\n".join(told)) in said
        assert all(word in said for word in _in_one_line(warning).split() if word != "…")  # in any order
        assert dev.end(signal.SIGINT) == Exit.DONE


def _in_one_line(said: str) -> str:
    """Return what a terminal got without colours, prefixes, numbers of lines, and where lines end."""
    plain = re.sub(r"\x1b\[\d+m", "", said)
    return " ".join(re.sub(r"^orders +│ |(?<=\.py:)\d+", "", plain, flags=re.MULTILINE).split())
