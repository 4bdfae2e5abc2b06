"""docs/wire/ says what the code does: every example is read by it, every table is compared with it."""

import base64
import hashlib
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

import jsonschema  # type: ignore[import-untyped]  # it ships none
import msgspec
import pytest

from mesh.agent._instance import Presence
from mesh.agent.definition import Agent
from mesh.bus import roles, streams
from mesh.bus.connection import Bus
from mesh.bus.stores import CODES
from mesh.client.client import POLL_S
from mesh.guard.context import Waits
from protocol.domain.rules import RULES_FOR
from protocol.domain.submit import AHEAD_S
from protocol.wire import codec, handoff, ids, prices
from protocol.wire.commands import Control, Doubt, Failure, MoveProposed, Proposal, Submit
from protocol.wire.config import BreakerEntry, Fleet, Policy
from protocol.wire.errors import Malformed
from protocol.wire.event import Event
from protocol.wire.event_parts import Assignment, Grounds, RoundOutcome
from protocol.wire.events import AnyEvent, type_of
from protocol.wire.freeze import FreezeEntry
from protocol.wire.handoff import Handoff, Rule
from protocol.wire.moves import MOVES, Move
from protocol.wire.records import (
    MAX_DATA_BYTES,
    Anchor,
    Card,
    DeadLetter,
    Ended,
    LaneAnswer,
    LiveNote,
    MemoryFolded,
    MemoryForgotten,
    MemoryRecord,
    MemorySpeaker,
    Notice,
    Questions,
)
from protocol.wire.schedule import ScheduleEntry, SchedulePause, ScheduleTick
from protocol.wire.schema import json_schema
from protocol.wire.shadow import Disagreement, ShadowCounts, ShadowEntry
from tests.certain import is_
from tests.docs.pages import Block, blocks, codes, read, section, table
from tests.servers import FLEET, ROOT

PAGE = "".join(read(f"wire/{name}") for name in ("client.md", "agent.md", "reference.md"))
EXAMPLES = [block for block in blocks(PAGE) if block.language == "json"]
SCHEMA = json_schema()


# --- the examples -----------------------------------------------------------------------------------


def _move(text: bytes) -> Move:
    wrapped = b'{"kind":"move","turn":"t","round":0,"move":%s}' % text
    proposal = is_(codec.parse_proposal(wrapped), MoveProposed)
    return proposal.move


def _reader(kind: type[Any]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(kind).decode


READERS: Mapping[str, Callable[[bytes], Any]] = {
    "submit": codec.parse_submit,
    "proposal": codec.parse_proposal,
    "move": _move,
    "control": codec.parse_control,
    "event": codec.decode_event,
    "stored": codec.decode_event,
    "work": _reader(Assignment),
    "notice": _reader(Notice),
    "lane": _reader(LaneAnswer),
    "ended": _reader(Ended),
    "dead-letter": _reader(DeadLetter),
    "card": _reader(Card),
    "live": _reader(LiveNote),
    "anchor": _reader(Anchor),
    "questions": _reader(Questions),
    "fleet": _reader(Fleet),
    "policy": _reader(Policy),
    "breaker": _reader(BreakerEntry),
    "freeze": _reader(FreezeEntry),
    "shadow": _reader(ShadowEntry),
    "schedule": _reader(ScheduleEntry),
    "pause": _reader(SchedulePause),
    "tick": _reader(ScheduleTick),
    "disagreement": _reader(Disagreement),
    "shadow-counts": _reader(ShadowCounts),
    "memory": _reader(MemoryRecord),
    "forgotten": _reader(MemoryForgotten),
    "speaker": _reader(MemorySpeaker),
    "folded": _reader(MemoryFolded),
}
SCHEMAS = {
    "submit": "Submit",
    "proposal": "Proposal",
    "move": "Move",
    "control": "Control",
    "event": "Event",
    "stored": "Event",
    "work": "Assignment",
    "fleet": "Fleet",
    "policy": "Policy",
    "notice": "Notice",
    "lane": "LaneAnswer",
    "ended": "Ended",
    "dead-letter": "DeadLetter",
    "card": "Card",
    "live": "LiveNote",
    "questions": "Questions",
    "breaker": "BreakerEntry",
    "freeze": "FreezeEntry",
    "memory": "MemoryRecord",
    "forgotten": "MemoryForgotten",
    "speaker": "MemorySpeaker",
    "folded": "MemoryFolded",
}
SERVERS_OWN = {
    "puback": {"stream", "seq", "error"},
    "pull": {"batch", "expires"},
    "batch": {"seq", "batch", "next_by_subj"},
}
"""What nats-server reads or writes: fields that an example may have."""


def _spread(value: Any) -> Any:
    """Return a value with every field of every struct in it, those at their default included."""
    if isinstance(value, msgspec.Struct):
        named = {name: _spread(getattr(value, name)) for name in value.__struct_fields__}
        config = value.__struct_config__
        return named | ({str(config.tag_field): config.tag} if config.tag_field else {})
    if isinstance(value, dict):
        return {key: _spread(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_spread(item) for item in value]
    return value


def _lost(example: Any, read: Any, path: str = "$") -> list[str]:
    """Return where an example says something that its reader did not take in."""
    if isinstance(example, dict) and isinstance(read, dict):
        unknown = [f"{path}.{key}" for key in example if key not in read]
        known = (key for key in example if key in read)
        return unknown + [lost for key in known for lost in _lost(example[key], read[key], f"{path}.{key}")]
    if isinstance(example, list) and isinstance(read, list) and len(example) == len(read):
        pairs = enumerate(zip(example, read, strict=True))
        return [lost for index, pair in pairs for lost in _lost(*pair, f"{path}[{index}]")]
    return [] if example == read else [path]


def _named(block: Block) -> str:
    return f"{block.kind or 'unnamed'}-line-{block.line}"


@pytest.mark.parametrize("block", [block for block in EXAMPLES if block.kind in READERS], ids=_named)
def test_an_example_is_read_by_the_code_and_nothing_in_it_is_lost(block: Block) -> None:
    read = READERS[block.kind](block.text.encode())
    assert _lost(json.loads(block.text), _spread(read)) == []


@pytest.mark.parametrize("block", [block for block in EXAMPLES if block.kind in SCHEMAS], ids=_named)
def test_an_example_is_valid_by_the_published_schema(block: Block) -> None:
    schema = {"$ref": f"#/$defs/{SCHEMAS[block.kind]}", "$defs": SCHEMA["$defs"]}
    jsonschema.Draft202012Validator(schema).validate(json.loads(block.text))


@pytest.mark.parametrize("block", [block for block in EXAMPLES if block.kind in SERVERS_OWN], ids=_named)
def test_an_example_for_the_server_has_no_field_of_ours(block: Block) -> None:
    assert set(json.loads(block.text)) <= SERVERS_OWN[block.kind]


@pytest.mark.parametrize("verb", ["ping", "info", "stats"])
def test_the_answers_to_discovery_have_the_fields_that_the_runtime_answers_with(verb: str) -> None:
    async def handler(turn: Any) -> Any:
        raise NotImplementedError

    presence = Presence(cast(Bus, None), Agent(name="records", handler=handler, version="1.2"), "i1")
    shown = json.loads(next(block.text for block in EXAMPLES if block.kind == verb))
    answered = presence.answer(verb)
    assert set(shown) == set(answered)
    assert (shown["type"], shown["version"]) == (answered["type"], answered["version"])
    for one, other in zip(shown.get("endpoints", ()), answered.get("endpoints", ()), strict=True):
        assert set(one) == set(other)


def test_every_example_says_what_it_is() -> None:
    known = {*READERS, *SERVERS_OWN, "ping", "info", "stats", "redacted"}
    assert [_named(block) for block in EXAMPLES if block.kind not in known] == []


def test_there_is_an_example_of_every_message_that_somebody_else_has_to_write() -> None:
    def tags(kind: str) -> set[str]:
        field = {"proposal": "kind", "control": "kind", "move": "move"}[kind]
        return {json.loads(block.text)[field] for block in EXAMPLES if block.kind == kind}

    assert tags("proposal") == {kind.__struct_config__.tag for kind in Proposal.__args__}
    assert tags("control") == {kind.__struct_config__.tag for kind in Control.__args__}
    assert tags("move") == set(MOVES)


def _sent(kind: type[msgspec.Struct], found: dict[str, bool]) -> dict[str, bool]:
    """Return by name whether a field of what others send may be null, wherever in it it stands."""
    for field in msgspec.structs.fields(kind):
        allowed = typing.get_args(field.type)
        found[field.name] = found.get(field.name, False) or type(None) in allowed
        parts = [part for each in (field.type, *allowed) for part in (each, *typing.get_args(each))]
        for part in parts:
            if isinstance(part, type) and issubclass(part, msgspec.Struct) and part is not kind:
                _sent(part, found)
    return found


def test_the_fields_that_may_be_null_are_those_that_the_page_says() -> None:
    listed = set(codes(PAGE.split('`null` means "missing" in these alone:', 1)[1].split(". ", 1)[0]))
    found: dict[str, bool] = {}
    for kind in (Submit, *Proposal.__args__, *Control.__args__, *Move.__args__):
        _sent(kind, found)
    assert listed == {name for name, nullable in found.items() if nullable}


@pytest.mark.parametrize("number", ["0.0", "1e0", "null"])
def test_a_whole_number_has_no_fraction_and_round_is_required(number: str) -> None:
    body = '{"kind":"move","turn":"t","round":%s,"move":{"move":"complete","answer":null}}'
    assert codec.parse_proposal((body % "0").encode()).round == 0
    for refused in (body % number, body.replace('"round":%s,', "")):
        with pytest.raises(Malformed, match="round"):
            codec.parse_proposal(refused.encode())


# --- the tables -------------------------------------------------------------------------------------


def _fields(kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind)]


def _first_column(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in codes(row[0])]


@pytest.mark.parametrize(
    ("kind", "heading", "first"),
    [
        pytest.param(Submit, "Submit", "text", id="submit"),
        pytest.param(Assignment, "A round", "turn", id="work"),
        pytest.param(Handoff, "A round", "move", id="handoff"),
        pytest.param(Policy, "The policy", "name", id="policy"),
    ],
)
def test_a_table_of_fields_names_every_field_and_no_other(
    kind: type[msgspec.Struct], heading: str, first: str
) -> None:
    listed = _first_column(table(section(PAGE, heading), first))
    assert sorted(listed) == sorted(_fields(kind))


def test_the_policy_table_has_the_defaults() -> None:
    for row in table(section(PAGE, "The policy"), "name"):
        shown = row[1].replace(",", "").replace("`", "").split()
        for name, value in zip(codes(row[0]), shown, strict=True):
            default = getattr(Policy(), name)
            assert value == (
                "none"
                if default in (None, ())
                else f"{default:g}"
                if type(default) is float
                else str(default)
            )


def test_the_fields_of_what_an_agent_is_told_of_earlier_rounds_are_named() -> None:
    said = section(PAGE, "A round")
    assert [
        name for name in _fields(RoundOutcome) if f"`{name}`" not in said and f'"{name}"' not in said
    ] == []


def test_the_fields_of_failures_and_doubts_are_named() -> None:
    said = section(PAGE, "A turn that broke") + section(PAGE, "An effect in doubt")
    assert [name for name in (*_fields(Failure), *_fields(Doubt)) if f"`{name}`" not in said] == []


@pytest.mark.parametrize("move", Move.__args__[:-1], ids=lambda kind: str(kind.__struct_config__.tag))
def test_each_field_of_each_move_is_explained_where_the_move_is(move: type[msgspec.Struct]) -> None:
    said = section(PAGE, "The moves")
    begin = said.index(f"**{move.__struct_config__.tag}**")
    end = said.find("\n**", begin)
    part = said[begin : end if end > 0 else None]
    assert [name for name in _fields(move) if f"`{name}`" not in part and f'"{name}"' not in part] == []


def test_the_rules_stand_in_the_order_in_which_they_are_tried() -> None:
    rows = table(section(PAGE, "The rules"), "known_policy")
    assert _first_column(rows) == [str(rule) for rule in Rule]


def test_the_rules_that_meet_other_moves_are_those_that_the_page_says() -> None:
    said = " ".join(section(PAGE, "The rules").split("a submit meets")[0].split())
    listed = {
        move: codes(rules)
        for moves, rules in re.findall(r"((?:`\w+`, )*`\w+`) meets? ((?:`\w+`, )+`\w+`)", said)
        for move in codes(moves)
    }
    others = {
        kind.__struct_config__.tag: rules  # type: ignore[attr-defined]
        for kind, rules in RULES_FOR.items()
        if len(rules) < len(Rule) - 1
    }
    assert listed == {str(move): [str(rule) for rule in rules] for move, rules in others.items()}


def test_the_events_table_has_every_event_with_its_payload() -> None:
    shown: dict[str, tuple[set[str], set[str]]] = {}
    for row in table(section(PAGE, "The events"), "request.opened"):
        optional = {name for part in re.findall(r"\[([^\]]*)\]", row[2]) for name in codes(part)}
        for type_ in codes(row[0]):
            shown[type_] = (set(codes(row[2])) - optional, optional)
    made = {}
    for kind in AnyEvent.__args__:
        own = [each for each in msgspec.structs.fields(kind) if each.name not in Event.__struct_fields__]
        made[type_of(kind)] = (
            {each.name for each in own if each.required},
            {each.name for each in own if not each.required},
        )
    assert shown == made


def test_the_envelope_and_the_grounds_are_named_in_full() -> None:
    rows = table(section(PAGE, "The events"), "type")
    assert set(_first_column(rows)) == {"type", *Event.__struct_fields__}
    said = section(PAGE, "The events")
    assert [name for name in _fields(Grounds) if f"`{name}`" not in said] == []


def test_the_types_that_open_a_round_are_those_that_carry_work_for_an_agent() -> None:
    rows = table(section(PAGE, "A round"), "request.opened")
    with_work = {type_of(kind) for kind in AnyEvent.__args__ if "work" in kind.__struct_fields__}
    assert set(_first_column(rows)) == with_work - {"escalation.raised"}


def test_a_role_may_publish_what_the_page_says_and_nothing_else() -> None:
    rows = {row[0].strip("*"): row for row in table_of_roles()}
    for role in (roles.Role.CLIENT, roles.Role.AGENT):
        granted = roles.grants(role, "somebody")
        assert granted.publish is not None
        assert {name.replace("{me}", "somebody") for name in codes(rows[role][1])} == set(granted.publish)
    viewer = roles.grants(roles.Role.VIEWER, "somebody").publish or ()
    assert set(codes(rows["viewer"][1])) == set(viewer)
    operator = set(roles.grants(roles.Role.OPERATOR, "somebody").publish or ())
    more = {name.replace("{me}", "somebody") for name in codes(rows["operator"][1])}
    assert more | set(viewer) == operator


def test_an_agent_takes_offers_of_what_it_lists_as_the_page_says() -> None:
    said = section(PAGE, "Who may do what").partition("also takes offers")[2]
    subjects = [code for code in codes(said) if "LOG.in-{inbox}" in code]
    plain = set(roles.grants(roles.Role.AGENT, "somebody").publish or ())
    granted = roles.grants(roles.Role.AGENT, "somebody", ["review", "read on"])
    digest = base64.b32encode(hashlib.sha256(b"intent\x1fread on").digest()).decode().lower()
    inboxes = ("any-review", f"any-{digest[:26]}")
    assert {each.replace("{inbox}", inbox) for each in subjects for inbox in inboxes} == (
        set(granted.publish or ()) - plain
    )


def test_what_a_viewer_may_read_are_the_streams_that_the_page_names() -> None:
    """Its permission names no stream: what answers direct gets is what it reads."""
    said = PAGE.split("Streams that answer direct gets:")[1].split(". ")[0]
    members = {"<agent>": tuple(FLEET.agents), "<client>": (*FLEET.clients, *FLEET.operators)}
    named = {name for name in codes(said) if "<" not in name}
    for mark, names in members.items():
        named |= {name.replace(mark, each) for name in codes(said) if mark in name for each in names}
    answering = {name for name, config in streams.stream_table(FLEET).items() if config.get("allow_direct")}
    assert named == answering


def table_of_roles() -> list[list[str]]:
    said = section(PAGE, "Who may do what")
    lines = [line for line in said.splitlines() if line.startswith("| **")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_code_that_a_notice_can_have_is_listed() -> None:
    sources = [*ROOT.glob("protocol/**/*.py"), *ROOT.glob("mesh/guard/*.py")]
    raised = {
        code for source in sources for code in re.findall(r'Rejected\(\s*"([a-z_.]+)"', source.read_text())
    }
    rows = table(section(PAGE, "Codes"), "unusable_id")
    assert set(_first_column(rows)) == raised | CODES | {
        "protocol.malformed",
        "unknown_request",
        "event_too_large",
        "guard_failed",
    }


# --- the numbers ------------------------------------------------------------------------------------


def test_the_numbers_of_an_agents_lease_are_those_of_the_code() -> None:
    fleet = Fleet(name="t", entry=ids.AgentName("a"))
    lease, pull = fleet.lease_s, fleet.pull_s
    assert f"| {lease:g} s, every {fleet.heartbeat_s:g} s, {pull:g} s |" in PAGE
    assert f"**{pull:g} s, less than the lease of {lease:g} s**" in PAGE
    pulls = [json.loads(block.text) for block in EXAMPLES if block.kind == "pull"]
    assert [each["expires"] for each in pulls] == [int(pull * streams.NS)]


def test_other_numbers_on_the_page_are_those_of_the_code() -> None:
    config = streams.stream_table(FLEET)
    assert config["PROP-a"]["max_msg_size"] == config["CTL"]["max_msg_size"] == 256 * streams.KIB
    assert (config["PROP-a"]["max_msgs"], config["PROP-a"]["max_bytes"]) == (10_000, 64 * streams.MIB)
    assert (config["CTL-c1"]["max_msgs"], config["CTL-c1"]["max_bytes"]) == (10_000, 16 * streams.MIB)
    assert (config["STEPS-a"]["max_msgs"], config["STEPS-a"]["max_bytes"]) == (250_000, 256 * streams.MIB)
    assert config["CARDS"]["max_msg_size"] == 64 * streams.KIB
    assert (config["DEAD"]["max_msg_size"], config["DEAD"]["max_msgs_per_subject"]) == (
        512 * streams.KIB,
        250,
    )
    assert MAX_DATA_BYTES == 256 * streams.KIB
    assert config["PROP-a"]["duplicate_window"] == streams.NS // 10
    assert f"tried for {Waits().overtaken_s:g} s" in PAGE
    assert f"may be {AHEAD_S // 60} minutes ahead" in PAGE
    assert f"every {POLL_S:g} s" in PAGE
    assert handoff.DEEPEST == 64
    assert prices.LONGEST_S == 10 * 366 * 86_400
