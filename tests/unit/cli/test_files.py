"""Exported logs, read and judged without a bus."""

import errno
import json
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mesh.cli.exits import Exit
from tests.mermaid import read
from tests.unit.cli.conftest import STORY, Mesh, spoilt

REQUEST = "c1_01HF7YAT00040G2081040G2081"


def test_show_tells_who_held_it_what_was_handed_over_and_every_refusal(mesh: Mesh) -> None:
    said = mesh("request", "show", STORY).output
    assert f"{REQUEST}  completed" in said
    assert "triage ✗ sales  transfer  refused by rule known_agent" in said
    assert "instead: may hand to: billing, refunds" in said
    assert "billing → triage  hand_back  admitted" in said
    assert "withheld: 2 facts and 1 artifact labelled pci, pii" in said
    assert 'answer: {"refunded":12.5,"text":"Done."}' in said


def test_show_as_json_has_the_documented_fields_and_the_events_as_stored(mesh: Mesh) -> None:
    said = json.loads(mesh("request", "show", STORY, "--json").output)
    documented = "request status policy topology client entry path depth answer error cost moves events"
    assert set(documented.split()) <= set(said)
    assert said["events"] == [json.loads(line) for line in STORY.read_text().splitlines()]
    move = {
        "seq",
        "id",
        "at",
        "move",
        "from",
        "to",
        "summary",
        "verdict",
        "rule",
        "detail",
        "facts",
        "withheld",
    }
    assert all(move | {"turn"} <= set(each) for each in said["moves"])


def test_show_as_html_is_one_file_that_loads_and_runs_nothing(mesh: Mesh) -> None:
    said = mesh("request", "show", STORY, "-o", "html").output
    page = _Page(said)
    assert page.names.count("svg") == 2
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.names)
    assert all(address.startswith("#e") for address in page.addresses)
    style = said.partition("<style>")[2].partition("</style>")[0]
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in said
    bodies = [json.loads(line) for line in STORY.read_text().splitlines()]
    assert [json.loads(text) for text in page.events] == bodies


def test_show_as_mermaid_is_the_text_of_a_diagram(mesh: Mesh) -> None:
    drawn = mesh("request", "show", STORY, "-o", "mermaid", "--at", 3).output
    lines = drawn.splitlines()
    assert read(drawn) == (len(lines) - 4, 3)
    assert "    p1-xp1: transfer to sales refused by known_agent: sell more" in lines
    assert lines[-1] == "    p1->>p2: transfer: check the amount and pay it back"


class _Page(HTMLParser):
    """The elements of a page, the addresses in it, and the JSON of its events."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.events: list[str] = []
        self._is_json = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        self._is_json = tag == "pre" and "details" in self.names[-4:]

    def handle_data(self, data: str) -> None:
        if self._is_json:
            self.events.append(data)
            self._is_json = False


def test_show_at_an_event_is_the_state_after_it(mesh: Mesh) -> None:
    then = json.loads(mesh("request", "show", STORY, "--json", "--at", 7).output)
    assert then["status"] == "open"
    assert then["waiting"][0]["for"] == "c1"
    assert len(then["events"]) == 8
    assert mesh("request", "show", STORY, "--at", 23).exit_code == Exit.FAILED


@pytest.mark.parametrize("command", ["replay", "log verify", "cost", "request show", "why"])
@pytest.mark.parametrize("content", [b"", b"\n\n"], ids=["empty", "empty lines"])
def test_a_file_without_events_is_said_to_be_one(
    mesh: Mesh, tmp_path: Path, command: str, content: bytes
) -> None:
    (tmp_path / "empty.jsonl").write_bytes(content)
    done = mesh(*command.split(), tmp_path / "empty.jsonl")
    assert done.exit_code == Exit.USAGE
    assert "holds no event" in done.output


def test_why_explains_the_last_refusal_by_default(mesh: Mesh) -> None:
    said = mesh("why", STORY).output
    assert "event 2 (move.refused)" in said
    assert "Refused by rule `known_agent`: 'sales' is not in the fleet." in said
    assert "What would be allowed: may hand to: billing, refunds." in said
    assert "fleet revision 1" in said
    assert "max_depth = 4" in said
    assert "triage ran again, in round 1" in said


@pytest.mark.parametrize("n", range(21))
def test_why_has_something_to_say_about_every_event(mesh: Mesh, n: int) -> None:
    result = mesh("why", STORY, n)
    assert result.exit_code == Exit.DONE, result.output
    assert f"event {n} (" in result.output


def test_why_as_json_names_rule_numbers_and_grounds(mesh: Mesh) -> None:
    said = json.loads(mesh("why", STORY, 2, "--json").output)
    assert said["rule"] == "known_agent"
    assert said["numbers"] == {"target": "sales"}
    assert said["grounds"]["sender"]["to"] == ["billing", "refunds"]
    assert said["policy"]["max_refusals"] == 2  # a default, said all the same


@pytest.mark.parametrize(
    ("kept", "what"),
    [(slice(3, None), "event 0 is missing"), (slice(0, None, 2), "event 1 is missing")],
    ids=["its beginning", "a gap"],
)
@pytest.mark.parametrize("command", [("request", "show"), ("why",)], ids=" ".join)
def test_a_log_that_lost_events_is_named_as_that(
    mesh: Mesh, here: Path, command: tuple[str, ...], kept: slice, what: str
) -> None:
    lost = here / "lost.jsonl"
    lost.write_text("\n".join(STORY.read_text().splitlines()[kept]))
    result = mesh(*command, lost)
    assert (result.exit_code, result.output.count("\n")) == (Exit.FAILED, 1), result.output
    assert what in result.stderr
    assert "mesh log verify" in result.stderr


def test_an_event_that_is_there_twice_is_named_as_that(mesh: Mesh, here: Path) -> None:
    twice = here / "twice.jsonl"
    lines = STORY.read_text().splitlines()
    twice.write_text("\n".join([*lines, lines[4]]))
    result = mesh("why", twice)
    assert result.exit_code == Exit.FAILED
    assert "event 4 is there twice" in result.stderr


def test_a_folder_that_cannot_be_made_is_a_matter_of_usage(mesh: Mesh, here: Path) -> None:
    (here / "file").write_text("")
    result = mesh("demo", "--keep", here / "file" / "x")
    assert result.exit_code == Exit.USAGE, result.output
    assert "--keep takes a folder that can be made" in result.stderr


def test_an_event_that_is_not_there_is_not_found(mesh: Mesh) -> None:
    result = mesh("why", STORY, 99)
    assert result.exit_code == Exit.FAILED
    assert "0 to 22" in result.stderr


def test_a_log_judged_again_comes_out_the_same(mesh: Mesh) -> None:
    result = mesh("replay", STORY)
    assert result.exit_code == Exit.DONE, result.output
    assert result.output == "1 request, 23 events judged again; 0 differ\n"


def test_a_changed_log_is_found_by_replay_and_by_verify(mesh: Mesh, here: Path) -> None:
    changed = spoilt(here / "changed.jsonl")
    for command in (("replay", changed), ("log", "verify", changed)):
        result = mesh(*command)
        assert result.exit_code == Exit.FAILED
        assert f"{REQUEST} event 13: " in result.output
    assert mesh("log", "verify", STORY).exit_code == Exit.DONE


def test_replay_says_which_verdicts_another_policy_would_have_changed(mesh: Mesh, here: Path) -> None:
    (here / "tight.toml").write_text("max_depth = 1\n")
    result = mesh("replay", STORY, "--policy", "tight.toml")
    assert result.exit_code == Exit.FAILED
    assert "event 15: was handoff.admitted, would be move.refused (rule depth, next round)" in result.output
    said = json.loads(mesh("replay", STORY, "--policy", "tight.toml", "--json").output)
    assert [each["n"] for each in said[0]["found"]] == [15]
    assert (said[0]["summary"]["differ"], said[0]["summary"]["by_rule"]) == (1, {"depth": 1})
    (here / "wide.toml").write_text("max_depth = 50\n")
    both = mesh("replay", STORY, "--policy", "tight.toml", "--policy", "wide.toml").output
    assert both.index("tight.toml:") < both.index("1 request") < both.index("wide.toml:")
    none = mesh("replay", STORY, "--policy", "tight.toml", "--where", "client=nobody")
    assert (none.exit_code, "0 requests" in none.output) == (Exit.DONE, True)


def test_a_replay_without_room_for_what_it_finds_says_so(
    mesh: Mesh, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mesh.cli.replay.compared", full)
    (here / "tight.toml").write_text("max_depth = 1\n")
    result = mesh("replay", STORY, "--policy", "tight.toml")
    assert (result.exit_code, "No space left" in result.stderr, "TMPDIR" in result.stderr) == (
        Exit.USAGE,
        True,
        True,
    )


def test_replay_says_what_another_fleet_would_have_changed(mesh: Mesh, here: Path) -> None:
    mesh("init", "shop")
    result = mesh("replay", STORY, "--fleet", "shop/mesh.toml")
    assert result.exit_code == Exit.FAILED
    assert "event 1: was request.opened" in result.output
    assert "would be request.refused (rule known_agent)" in result.output
    (here / "broken.toml").write_text("[agents\n")
    broken = mesh("replay", STORY, "--fleet", "broken.toml")
    assert (broken.exit_code, "broken.toml" in broken.stderr, "line 1" in broken.stderr) == (
        Exit.USAGE,
        True,
        True,
    )


def test_a_line_that_is_no_event_is_named_with_its_place(mesh: Mesh, here: Path) -> None:
    (here / "log.jsonl").write_bytes(STORY.read_bytes() + b"half a li")
    (here / "p.toml").write_text("max_depth = 1\n")
    result = mesh("replay", "log.jsonl", "--policy", "p.toml")
    assert f"log.jsonl: line {len(STORY.read_bytes().splitlines()) + 1} is no event" in result.stderr
    assert result.exit_code == Exit.USAGE


@pytest.mark.parametrize("text", ["max_depth = 'deep'\n", "depth = 3\n", "max_depth ="])
def test_a_policy_that_is_none_is_a_matter_of_usage(mesh: Mesh, here: Path, text: str) -> None:
    (here / "p.toml").write_text(text)
    assert mesh("replay", STORY, "--policy", "p.toml").exit_code == Exit.USAGE


def test_what_is_neither_an_id_nor_a_file_is_a_matter_of_usage(mesh: Mesh) -> None:
    result = mesh("request", "show", "case.jsonl")
    assert result.exit_code == Exit.USAGE
    assert "neither a request's id nor a file" in result.stderr
