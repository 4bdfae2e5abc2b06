"""`mesh dev` in a folder, and every other command beside it, each a process of its own."""

import json
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from mesh.local.server import server_binary
from tests.servers import PATIENCE_S, ROOT
from tests.system.terminal import READY, Finished, Folder, kill, wait_until_gone

FLEET = """
name = "desk"
entry = "front"

[agents.front]
module = "desk:front"

[agents.greeter]
module = "desk:greeter"

[agents.absent]      # nobody runs it

[clients.app]
[operators.ops]
[viewers.audit]
[human]
"""


def desk(path: Path) -> Folder:
    """Make a folder with a fleet in it, as a user has one."""
    shutil.copy(ROOT / "tests" / "system" / "desk.py", path)
    (path / "mesh.toml").write_text(FLEET)
    return Folder(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A folder in which `mesh dev` runs."""
    made = desk(tmp_path_factory.mktemp("desk"))
    with made.running("dev", "--port", 0, until=READY) as dev:
        yield made
        # The last of this module's tests: a Ctrl-C ends it cleanly, and all that it had started.
        children = dev.children()
        assert len(children) == 4  # server, guard, two agents
        assert dev.end(signal.SIGINT) == Exit.DONE
        wait_until_gone(children)
        assert not (made.path / ".mesh" / "dev.json").exists()


def submitted(folder: Folder, text: str, *rest: str) -> str:
    done = folder.mesh("request", "submit", text, *rest)
    assert done.status == Exit.DONE, done
    return done.out.strip()


def shown(folder: Folder, request: str) -> dict[str, object]:
    told: dict[str, object] = folder.mesh("request", "show", request, "--json").json
    return told


def watched(folder: Folder, request: str) -> Finished:
    return folder.mesh("request", "watch", request)


def in_queue(folder: Folder, text: str) -> str:
    """Submit something that a person has to decide, and wait until it is theirs."""
    request = submitted(folder, text)
    eventually(lambda: request in folder.mesh("human", "ls").out)
    return request


def eventually(looks: Callable[[], bool]) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + PATIENCE_S
    while not looks():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def test_send_prints_the_answer_and_nothing_else(folder: Folder) -> None:
    done = folder.process("send", "hello", "--fact", "name=Ada")
    assert done.status == Exit.DONE, done
    assert done.out == "Hello, Ada!\n"
    assert done.err == ""


def test_send_follow_shows_what_happens_beside_the_answer(folder: Folder) -> None:
    done = folder.mesh("send", "hello", "--follow", "--json")
    assert done.json["answer"] == "Hello, stranger!"
    assert "front → greeter  transfer  admitted" in done.err


def test_a_client_that_cannot_read_the_log_follows_what_is_addressed_to_it(
    folder: Folder, tmp_path: Path
) -> None:
    done = Folder(tmp_path).mesh("send", "hello", "--follow", **credentials(folder, "app"))
    assert done.out == "Hello, stranger!\n"
    assert "cannot read the log" in done.err
    assert Folder(tmp_path).mesh("request", "ls", **credentials(folder, "app")).status == Exit.USAGE


def test_a_context_of_the_nats_command_line_will_do(folder: Folder, tmp_path: Path) -> None:
    known = credentials(folder, "audit")
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    said = {"url": known["NATS_URL"], "nkey": known["MESH_CREDENTIALS"]}
    (contexts / "here.json").write_text(json.dumps(said))
    away = Folder(tmp_path)
    assert away.mesh("request", "ls", "--context", "here", XDG_CONFIG_HOME=str(tmp_path)).status == Exit.DONE


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        pytest.param(["hello", "--to", "nobody"], Exit.REFUSED, "known_agent", id="refused"),
        pytest.param(["give-up"], Exit.FAILED, "nothing to be done", id="failed"),
        pytest.param(["person", "--timeout", "0.5"], Exit.TIMED_OUT, "mesh request show", id="timed-out"),
    ],
)
def test_send_says_by_its_exit_status_how_it_went(
    folder: Folder, arguments: list[str], status: Exit, said: str
) -> None:
    done = folder.process("send", *arguments)
    assert done.status == status, done
    assert said in done.err
    assert done.out == ""


def test_a_bus_whose_url_is_none_is_wrong_usage(folder: Folder) -> None:
    key = folder.path / ".mesh" / "keys" / "app.nk"
    done = folder.mesh("send", "hello", "--url", "nats://127.0.0.1:99999", MESH_CREDENTIALS=str(key))
    assert (done.status, done.err.count("\n")) == (Exit.USAGE, 1), done
    assert "not a server's URL" in done.err


def test_an_unreachable_bus_is_an_exit_status_of_its_own(folder: Folder) -> None:
    key = folder.path / ".mesh" / "keys" / "app.nk"
    done = folder.mesh("send", "hello", "--url", "nats://127.0.0.1:1", MESH_CREDENTIALS=str(key))
    assert done.status == Exit.UNREACHABLE, done
    assert done.err == "mesh: the bus does not answer at nats://127.0.0.1:1 [bus.unreachable]\n"


def test_a_request_can_be_listed_shown_explained_and_judged_again(folder: Folder) -> None:
    request = submitted(folder, "stranger")
    eventually(lambda: request in folder.mesh("request", "ls", "--status", "human").out)
    told = shown(folder, request)
    assert told["status"] == "open"
    assert "Refused by rule `known_agent`" in folder.mesh("why", request).out
    assert folder.mesh("replay", request).status == Exit.DONE
    listed = {each["request"]: each for each in folder.mesh("request", "ls", "--json").json}
    assert listed[request]["status"] == "open"
    assert len(folder.mesh("request", "ls", "-n", "1").out.splitlines()) == 2  # the heading, and one


def test_an_exported_log_tells_the_same_story_without_the_bus(folder: Folder, tmp_path: Path) -> None:
    request = submitted(folder, "hello")
    assert watched(folder, request).status == Exit.DONE
    away = Folder(tmp_path)
    file = tmp_path / "story.jsonl"
    exported = folder.mesh("log", "export", request, "--out", file)
    assert "4 events" in exported.err
    assert away.mesh("request", "show", file, "--json").json == shown(folder, request)
    assert away.mesh("log", "verify", file).out == "1 request, 4 events: all links hold\n"
    assert away.mesh("replay", file).status == Exit.DONE
    file.write_bytes(file.read_bytes().replace(b"greet them", b"ignore them"))
    assert away.mesh("replay", file).status == Exit.FAILED


def test_an_export_that_fails_leaves_the_file_that_was_there(folder: Folder, tmp_path: Path) -> None:
    """It may be the only copy of a log that has aged out."""
    file = tmp_path / "case.jsonl"
    file.write_text("the only copy")
    unknown = folder.mesh("log", "export", "app_01ARZ3NDEKTSV4RRFFQ69G5FAV", "--out", file)
    assert "there is no request" in unknown.err, unknown
    key = str(folder.path / ".mesh" / "keys" / "audit.nk")
    elsewhere = ("--url", "nats://127.0.0.1:1")
    away = folder.mesh("log", "export", "--all", "--out", file, *elsewhere, MESH_CREDENTIALS=key)
    assert "does not answer" in away.err, away
    assert file.read_text() == "the only copy"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("out", ["nowhere/case.jsonl", "."])
def test_a_place_that_cannot_be_written_is_one_sentence(folder: Folder, tmp_path: Path, out: str) -> None:
    done = folder.mesh("log", "export", "--all", "--out", tmp_path / out)
    assert (done.status, done.err.count("\n")) == (Exit.USAGE, 1), done
    assert "cannot be written" in done.err


def test_the_whole_log_can_be_exported_and_its_chains_hold(folder: Folder) -> None:
    request = submitted(folder, "hello")
    watched(folder, request)
    lines = folder.mesh("log", "export", "--all").out.splitlines()
    assert request in {json.loads(line)["request"] for line in lines}
    verified = folder.mesh("log", "verify")
    assert verified.status == Exit.DONE
    assert " all links hold\nanchors vouch for the end of " in verified.out or "\nno anchor: " in verified.out
    tail = folder.mesh("log", "tail", "--no-follow", "-n", 3, "--json").out.splitlines()
    assert lines[-1] in tail


@pytest.mark.parametrize(
    ("decision", "answer"),
    [
        pytest.param(["--complete", "--answer", "No."], "No.", id="answered"),
        pytest.param(["--to", "greeter", "--fact", "greet=Bo"], "Hello, Bo!", id="to-an-agent"),
        pytest.param(["--again"], "decided", id="again"),
        pytest.param([], "decided", id="back-to-whose-turn-it-ended"),
    ],
)
def test_a_person_decides_what_waits_for_people(folder: Folder, decision: list[str], answer: str) -> None:
    request = in_queue(folder, "person")
    assert "a person has to decide" in folder.mesh("human", "show", request).out
    done = folder.mesh("human", "resolve", request, "--by", "Ada", *decision)
    assert done.status == Exit.DONE, done
    assert watched(folder, request).status == Exit.DONE
    told = shown(folder, request)
    assert told["answer"] == answer
    assert "Ada" in json.dumps(told["moves"])
    again = folder.mesh("human", "resolve", request, "--again")
    assert again.status == Exit.FAILED, again
    assert "has ended: completed" in again.err


def test_an_order_that_makes_no_sense_is_refused_with_its_reason(folder: Folder) -> None:
    request = in_queue(folder, "person")
    done = folder.mesh("human", "resolve", request, "--to", "nobody")
    assert done.status == Exit.USAGE, done
    assert "'nobody' is no agent of this fleet; there are " in done.err
    assert folder.mesh("dead", "ls", "--json").json == []  # a typing mistake is nobody else's business
    assert folder.mesh("human", "resolve", request, "--again", "--to", "front").status == Exit.USAGE


@pytest.mark.parametrize("who", ["app", "ops"])
def test_a_request_is_cancelled_by_its_client_or_an_operator(folder: Folder, who: str) -> None:
    request = submitted(folder, "person")
    done = folder.mesh("request", "cancel", request, "--as", who, "--reason", "never mind", "--by", "Bo")
    assert done.status == Exit.DONE, done
    assert shown(folder, request)["error"] == {"code": "cancelled", "detail": f"by Bo ({who}): never mind"}
    assert watched(folder, request).status == Exit.FAILED
    assert folder.mesh("request", "cancel", request, "--as", who).status == Exit.REFUSED


def test_a_message_that_nobody_can_use_is_shown_with_its_bytes(folder: Folder) -> None:
    request = submitted(folder, "hello")
    folder.mesh("request", "submit", "something else", "--id", request)
    eventually(lambda: request in folder.mesh("dead", "ls").out)
    letter = next(each for each in folder.mesh("dead", "ls", "--json").json if each["request"] == request)
    assert letter["code"] == "request_exists"
    raw = folder.mesh("dead", "show", letter["seq"], "--raw").out
    assert json.loads(raw)["text"] == "something else"
    assert folder.mesh("dead", "show", 999_999).status == Exit.FAILED


def test_doctor_finds_an_agent_that_nobody_serves_and_what_waits_for_it(folder: Folder) -> None:
    request = submitted(folder, "away")
    eventually(lambda: request in folder.mesh("doctor").out)
    done = folder.mesh("doctor")
    assert done.status == Exit.FAILED
    assert re.search(rf"FOUND +agents: nobody serves absent; 1 handoff waits .*\({request}\)", done.out), done
    assert "durable: sync_interval always, the log is kept by one server" in done.out
    assert "streams, consumers, fleet and policies are as the fleet file wants them" in done.out


def test_doctor_says_durable_only_where_it_has_seen_it(folder: Folder) -> None:
    here = {
        each["check"]: each
        for each in folder.mesh("doctor", "--json", "--monitor", "http://127.0.0.1:1").json
    }
    assert here["durability"]["state"] == "unknown"
    assert "durable" not in here["durability"]["text"]
    viewer = {each["check"]: each for each in folder.mesh("doctor", "--json", "--as", "audit").json}
    assert viewer["agents"]["state"] == "unknown"
    assert viewer["guards"]["state"] == "ok"


def test_agents_are_listed_with_who_is_alive(folder: Folder) -> None:
    listed = {each["name"]: each for each in folder.mesh("agent", "ls", "--json").json}
    assert {name: len(each["instances"]) for name, each in listed.items()} == {
        "front": 1,
        "greeter": 1,
        "absent": 0,
    }
    assert listed["front"]["card"]["description"] == "Reads what comes in"
    assert folder.mesh("agent", "show", "front").status == Exit.DONE
    assert folder.mesh("agent", "show", "absent").status == Exit.FAILED


def test_setup_a_second_time_has_nothing_to_do(folder: Folder) -> None:
    done = folder.mesh("setup")
    assert done.status == Exit.DONE, done
    assert "is up to date with desk" in done.out


def test_an_added_agent_is_applied_to_the_bus(folder: Folder, tmp_path: Path) -> None:
    away = Folder(tmp_path)
    (tmp_path / "mesh.toml").write_text(FLEET)
    added = away.mesh(
        "agent", "add", "late", "--module", "desk:late", "--apply", **credentials(folder, "admin")
    )
    assert added.status == Exit.DONE, added
    assert "create consumer LOG/in-late" in added.out
    assert "late" in folder.mesh("agent", "ls").out
    assert "`mesh setup` would write mesh.conf.fleet" in folder.mesh("doctor").out
    assert folder.mesh("setup", "--dry-run").out == "write mesh.conf.fleet\n"
    assert folder.mesh("setup").out == "write mesh.conf.fleet\n"


@pytest.mark.parametrize(
    ("arguments", "name", "number"),
    [
        pytest.param(["guard", "run", "--identity", "spare"], "guard", signal.SIGTERM, id="guard-SIGTERM"),
        pytest.param(["agent", "run", "desk:greeter"], "greeter", signal.SIGTERM, id="agent-SIGTERM"),
        pytest.param(["agent", "run", "desk:greeter"], "greeter", signal.SIGINT, id="agent-SIGINT"),
    ],
)
def test_a_service_goes_when_it_is_told_to(
    folder: Folder, arguments: list[str], name: str, number: signal.Signals
) -> None:
    with folder.running(*arguments, until=f"{arguments[0]}_ready", **credentials(folder, name)) as service:
        assert service.end(number) == Exit.DONE
        assert f"{arguments[0]}_drained" in service.said


def test_a_service_that_still_waits_for_its_bus_goes_too(folder: Folder) -> None:
    away = credentials(folder, "guard") | {"NATS_URL": "nats://127.0.0.1:1"}
    with folder.running("guard", "run", until="bus_awaited", **away) as service:
        assert service.end() == Exit.DONE


def credentials(folder: Folder, name: str) -> dict[str, str]:
    """Return what a service of that name finds in its environment."""
    dev = json.loads((folder.path / ".mesh" / "dev.json").read_text())
    return {"NATS_URL": dev["url"], "MESH_NAME": name, "MESH_CREDENTIALS": f"{dev['keys']}/{name}.nk"}


def test_only_its_owner_may_write_the_file_that_leads_to_the_bus(folder: Folder) -> None:
    assert (folder.path / ".mesh" / "dev.json").stat().st_mode & 0o777 == 0o600


def test_an_agent_cannot_run_under_another_ones_credentials(folder: Folder) -> None:
    done = folder.process("agent", "run", "desk:greeter", **credentials(folder, "front"))
    assert done.status == Exit.USAGE
    assert "credentials of 'front'" in done.err


def test_dev_starts_again_what_dies_keeps_its_log_and_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    folder = desk(tmp_path)
    with folder.running("dev", "--port", 0, until=READY) as dev:
        request = submitted(folder, "hello")
        kill(dev, "desk:front")
        dev.wait_for("front runs again")
        kill(dev, str(server_binary()))
        dev.wait_for("nats-server runs again")
        durable = [each for each in folder.mesh("doctor", "--json").json if each["check"] == "durability"]
        assert durable[0]["state"] == "ok", "it still finds the server's monitoring"
        assert folder.mesh("send", "hello", "--fact", "name=Bo").out == "Hello, Bo!\n"
        assert watched(folder, request).status == Exit.DONE
        assert dev.end() == Exit.DONE
    with folder.running("dev", "--port", 0, until=READY) as dev:
        assert shown(folder, request)["answer"] == "Hello, stranger!"
        children = dev.children()
        assert len(children) == 4  # server, guard, two agents
        assert dev.end(signal.SIGKILL) == -signal.SIGKILL
        wait_until_gone(children)


def test_a_fleet_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    folder = desk(tmp_path)
    (tmp_path / "desk.py").write_text("import nothing_of_that_name\n")
    done = folder.process("dev", "--port", 0)
    assert done.status == Exit.FAILED
    assert "no module 'nothing_of_that_name'" in done.err
    assert not (tmp_path / ".mesh" / "dev.json").exists()
