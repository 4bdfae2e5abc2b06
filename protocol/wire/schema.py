"""The wire contract for programs in other languages: a JSON Schema and an AsyncAPI document.

Both are generated from the types and subjects that this package itself reads and writes with, so they cannot
differ from the code. A test compares the files in `protocol/schema/` with them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from protocol.wire import subjects
from protocol.wire.commands import Control, Proposal, Submit
from protocol.wire.config import BreakerEntry, Fleet, Policy
from protocol.wire.event import VERSION
from protocol.wire.events import AnyEvent, Ended, EscalationRaised, TurnSuspended, type_of
from protocol.wire.freeze import FreezeEntry
from protocol.wire.handoff import Handoff
from protocol.wire.moves import Move
from protocol.wire.records import (
    Card,
    DeadLetter,
    LaneAnswer,
    LiveNote,
    MemoryFolded,
    MemoryForgotten,
    MemoryRecord,
    MemorySpeaker,
    Notice,
    Questions,
)

JSON_SCHEMA_FILE = "handoff-mesh.schema.json"
ASYNCAPI_FILE = "asyncapi.json"

Json = dict[str, Any]

UNIONS: Mapping[str, tuple[Any, str]] = {
    "Event": (AnyEvent, ""),
    "Proposal": (Proposal, "proposal."),
    "Control": (Control, "control."),
    "Move": (Move, "move."),
}
"""The tagged unions by name, each with the prefix that turns a member's tag into its definition's name."""

BESIDE_THE_LOG = (
    Notice,
    LaneAnswer,
    DeadLetter,
    Card,
    LiveNote,
    BreakerEntry,
    FreezeEntry,
    MemoryRecord,
    MemoryForgotten,
    MemorySpeaker,
    MemoryFolded,
    Questions,
)
"""Documents beside the log: hints, records for people, and what guards or agents share."""

_EVENTS = tuple(map(type_of, AnyEvent.__args__))


def _definitions(ref_template: str) -> Json:
    """Return the definitions of everything on the wire, by name. The template has `{name}` for a name."""
    roots = (AnyEvent, Submit, Proposal, Control, Handoff, Policy, Fleet, *BESIDE_THE_LOG)
    _, generated = msgspec.json.schema_components(roots, ref_template="{name}")
    found: Json = msgspec.json.decode(msgspec.json.encode(generated))  # defaults become JSON values
    names = {
        kind.__name__: f"{prefix}{kind.__struct_config__.tag}".replace("?", "unknown")
        for union, prefix in UNIONS.values()
        for kind in union.__args__
    }
    definitions: Json = {
        names.get(name, name): _referring(schema, names, ref_template) for name, schema in found.items()
    }
    definitions["Notice"]["oneOf"] = [{"required": ["error"]}, {"required": ["ended"]}]
    for name, (union, prefix) in UNIONS.items():
        members = (f"{prefix}{kind.__struct_config__.tag}".replace("?", "unknown") for kind in union.__args__)
        definitions[name] = {"anyOf": [{"$ref": ref_template.format(name=member)} for member in members]}
    return dict(sorted(definitions.items()))


def _referring(node: Any, names: Mapping[str, str], ref_template: str) -> Any:
    """Return a schema with our names in its references and without msgspec's own keywords."""
    if isinstance(node, list):
        return [_referring(item, names, ref_template) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: ref_template.format(name=names.get(value, value))
        if key == "$ref"
        else _referring(value, names, ref_template)
        for key, value in node.items()
        if key != "discriminator" or "anyOf" not in node
    }


def json_schema() -> Json:
    """Return the JSON Schema (2020-12). It describes an event; `$defs` has the rest by name."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:handoff-mesh:wire:v{VERSION}",
        "title": "Handoff Mesh wire contract",
        "description": (
            "One event of a request's log. `$defs` has Submit, Proposal, Control (what is asked for), "
            "Event (what is true), Handoff, Policy, Fleet, Notice, LaneAnswer, DeadLetter, Card, LiveNote, "
            "BreakerEntry, FreezeEntry, MemoryRecord, MemoryForgotten, MemorySpeaker, "
            "MemoryFolded, Questions. "
            "Readers ignore fields that they do not know."
        ),
        "$ref": "#/$defs/Event",
        "$defs": _definitions("#/$defs/{name}"),
    }


# --- AsyncAPI -------------------------------------------------------------------------------------

PARAMETERS: Mapping[str, str] = {
    "to": "Who must act: an agent, a client or `human`; `_` for no one.",
    "request": "The request's id, `<submitter>_<ULID>`; for a control message `_` means the whole mesh.",
    "sender": "The sender. The broker lets each name publish only under itself.",
    "name": "The name that keeps it.",
    "agent": "An agent's name.",
    "turn": "The id of the event that opened the turn.",
    "step": "`<round>-<n>`, or `end` when a guard ended the turn.",
    "client": "Who submitted the request.",
    "policy": "A policy's name.",
    "model": "A model's id, or a derived token if the id is not a valid token.",
    "conversation": "A conversation's name, or a derived token if the name is not a valid token.",
    "key": "A fact's key, or a derived token if the key is not a valid token; `_…` for an order to forget.",
}


class Channel(NamedTuple):
    """One family of subjects, and which messages it carries."""

    address: str
    description: str
    messages: tuple[str, ...] = ()


def _address(build: Any, *parameters: str) -> str:
    """Return a subject with `{name}` for each parameter, using the function that builds the subject."""
    marks = [f"PARAMETER-{name}" for name in parameters]
    address: str = build(*marks)
    for mark, name in zip(marks, parameters, strict=True):
        address = address.replace(mark, f"{{{name}}}")
    return address


CHANNELS: Mapping[str, Channel] = {
    "proposals": Channel(
        _address(subjects.prop, "sender", "request"),
        "What is asked for. A work queue: the broker acknowledges what it stored, and a guard decides it.",
        ("Submit", "proposal.move", "proposal.turn_failed", "proposal.effect_doubted"),
    ),
    "lane": Channel(
        _address(subjects.lane, "sender", "request"),
        "The same messages, sent to a guard over core NATS and not stored. The guard answers once the "
        "verdict is in the log. Without an answer, the sender stores the message in the queue.",
        ("Submit", "proposal.move", "proposal.turn_failed", "proposal.effect_doubted"),
    ),
    "controls": Channel(
        _address(subjects.ctl, "sender", "request"),
        "What people and clients ask for besides. A work queue that guards read before proposals.",
        tuple(f"control.{kind.__struct_config__.tag}" for kind in Control.__args__),
    ),
    "log": Channel(
        _address(subjects.evt, "to", "request"),
        "What is true: append-only, written only by guards, one ordered history for each request. "
        "An event is in the inbox of the name that must act on it.",
        _EVENTS,
    ),
    "notes": Channel(
        _address(subjects.note, "to", "request"),
        "A wake-up without a body, or a notice. Core NATS: only a hint; the truth is in the log.",
        ("Notice",),
    ),
    "deadLetters": Channel(
        _address(subjects.dead, "name"),
        "Inbox events that an agent could not read, kept with the reason.",
        ("DeadLetter",),
    ),
    "guardsDeadLetters": Channel(
        _address(subjects.dead_from, "sender"),
        "Messages that guards could not read or act on, kept with the reason. One list for each sender.",
        ("DeadLetter",),
    ),
    "fleet": Channel(subjects.FLEET, "Who exists and what each may do, as the admin set it.", ("Fleet",)),
    "policies": Channel(_address(subjects.policy, "policy"), "The policies by name.", ("Policy",)),
    "steps": Channel(
        _address(subjects.step, "agent", "request", "turn", "step"),
        "The journal of a turn, one message per subject. Its format belongs to the agent's runtime.",
    ),
    "ends": Channel(
        _address(subjects.end, "agent", "request", "turn"),
        "The end of a turn that a guard ended, as a notice with `ended`. Written only by guards.",
    ),
    "cards": Channel(
        _address(subjects.card, "agent"),
        "What a running agent tells about itself, for display. No verdict depends on it.",
        ("Card",),
    ),
    "live": Channel(
        _address(subjects.live, "client", "request", "agent", "turn"),
        "What a running turn shows while it works. Core NATS; for display.",
        ("LiveNote",),
    ),
    "breakers": Channel(
        _address(subjects.breaker, "agent"),
        "The circuit breaker of an agent, which guards share. Without an entry it is closed.",
        ("BreakerEntry",),
    ),
    "freeze": Channel(
        subjects.FREEZE, "Tells if the whole mesh is frozen. Without an entry it is not.", ("FreezeEntry",)
    ),
    "questions": Channel(
        _address(subjects.questions, "client", "request"),
        "A request's questions to its client that have no reply yet. Written only by guards.",
        ("Questions",),
    ),
    "memories": Channel(
        _address(subjects.memory, "client", "conversation", "key"),
        "What conversations remember, by fact, and what they must forget. Written only by guards.",
        ("MemoryRecord", "MemoryForgotten", "MemorySpeaker", "MemoryFolded"),
    ),
}


class Operation(NamedTuple):
    """Who sends to a channel or receives from it."""

    action: str
    channel: str
    summary: str
    only: tuple[str, ...] = ()
    """Some of the channel's messages; empty for all."""


_READ_BY_CLIENT = tuple(type_of(kind) for kind in (*Ended.__args__, TurnSuspended))
_ROUNDS = tuple(
    type_of(kind)
    for kind in AnyEvent.__args__
    if "work" in kind.__struct_fields__ and kind is not EscalationRaised  # which people read
)

OPERATIONS: Mapping[str, Operation] = {
    "clientSubmits": Operation("send", "proposals", "A client or an operator submits.", ("Submit",)),
    "clientReadsAnswer": Operation(
        "receive", "log", "A client reads its answers and questions.", _READ_BY_CLIENT
    ),
    "clientControls": Operation(
        "send",
        "controls",
        "A client cancels, replies and forgets.",
        ("control.cancel", "control.reply", "control.forget"),
    ),
    "agentTakesRound": Operation("receive", "log", "An agent takes a round of a turn.", _ROUNDS),
    "agentProposes": Operation(
        "send",
        "proposals",
        "An agent asks for a move, or reports that its turn failed.",
        ("proposal.move", "proposal.turn_failed", "proposal.effect_doubted"),
    ),
    "agentJournals": Operation("send", "steps", "An agent records a step before it uses it."),
    "agentPresentsItself": Operation("send", "cards", "An agent presents itself."),
    "agentShowsProgress": Operation("send", "live", "An agent shows its progress."),
    "operatorControls": Operation("send", "controls", "An operator intervenes."),
    "guardHearsProposals": Operation("receive", "proposals", "A guard decides proposals."),
    "guardAnswersQuestions": Operation(
        "receive", "lane", "A guard decides a message on the lane, and answers."
    ),
    "guardHearsControls": Operation("receive", "controls", "A guard records what people order."),
    "guardAppends": Operation("send", "log", "A guard appends what is true, by compare-and-set."),
    "guardNotifies": Operation("send", "notes", "A guard wakes a member, or reports a mistake."),
    "anyoneIsNotified": Operation("receive", "notes", "Each name reads its own notes."),
    "agentGivesUp": Operation("send", "deadLetters", "An agent that cannot read an event keeps it here."),
    "guardGivesUp": Operation("send", "guardsDeadLetters", "A guard keeps what it cannot read or act on."),
    "guardKnowsFleet": Operation("receive", "fleet", "A guard decides by the current fleet."),
    "guardKnowsPolicies": Operation("receive", "policies", "A guard opens requests under a policy."),
    "clientSeesProgress": Operation("receive", "live", "A client sees what its request's turns do."),
    "agentsKnowCards": Operation("receive", "cards", "An agent reads its peers' cards."),
    "guardCounts": Operation("send", "breakers", "A guard counts an agent's successes and failures."),
    "guardKnowsBreakers": Operation(
        "receive", "breakers", "A guard checks before it gives work to an agent."
    ),
    "guardFreezes": Operation("send", "freeze", "A guard carries out an operator's order to the whole mesh."),
    "guardKnowsFreeze": Operation("receive", "freeze", "A guard stops and resumes deciding."),
    "guardRemembers": Operation("send", "memories", "A guard stores what a request leaves, or forgets it."),
    "guardRecalls": Operation("receive", "memories", "A guard opens a request with what is remembered."),
    "clientReadsItsMemory": Operation("receive", "memories", "A client reads its own conversations."),
    "viewerReads": Operation("receive", "log", "A viewer reads the whole log."),
}


def asyncapi() -> Json:
    """Return the AsyncAPI (3.1.0) document: the subjects, their messages, and who sends them."""
    schemas = _definitions("#/components/schemas/{name}")
    carried = dict.fromkeys(name for channel in CHANNELS.values() for name in channel.messages)
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Handoff Mesh",
            "version": f"{VERSION}.0.0",
            "description": (
                "Agents hand work to each other by proposing it. A guard decides. Its decision is an event, "
                "and that event is the message in the next agent's inbox."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "mesh": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "NATS with JetStream, 2.12 or newer. Each name has its own key and grants.",
                "security": [{"$ref": "#/components/securitySchemes/nkey"}],
            }
        },
        "channels": {name: _channel(channel) for name, channel in CHANNELS.items()},
        "operations": {name: _operation(operation) for name, operation in OPERATIONS.items()},
        "components": {
            "messages": {name: _message(name, schemas[name]) for name in carried},
            "schemas": schemas,
            "parameters": {name: {"description": text} for name, text in PARAMETERS.items()},
            "securitySchemes": {
                "nkey": {
                    "type": "asymmetricEncryption",
                    "description": "An NKey: the server's challenge is signed with an Ed25519 key.",
                }
            },
        },
    }


def _channel(channel: Channel) -> Json:
    described: Json = {"address": channel.address, "description": channel.description}
    named = [part[1:-1] for part in channel.address.split(".") if part.startswith("{")]
    if named:
        described["parameters"] = {name: {"$ref": f"#/components/parameters/{name}"} for name in named}
    described["messages"] = {name: {"$ref": f"#/components/messages/{name}"} for name in channel.messages}
    return described


def _operation(operation: Operation) -> Json:
    described: Json = {
        "action": operation.action,
        "channel": {"$ref": f"#/channels/{operation.channel}"},
        "summary": operation.summary,
    }
    carried: Iterable[str] = operation.only or CHANNELS[operation.channel].messages
    refs = [{"$ref": f"#/channels/{operation.channel}/messages/{name}"} for name in carried]
    return described | ({"messages": refs} if refs else {})


def _message(name: str, schema: Mapping[str, Any]) -> Json:
    return {
        "name": name,
        "title": schema.get("title", name),
        "summary": str(schema.get("description", "")).partition("\n")[0],
        "contentType": "application/json",
        "payload": {"$ref": f"#/components/schemas/{name}"},
    }


# --- files ----------------------------------------------------------------------------------------


def documents() -> dict[str, str]:
    """Return both documents as text, by file name."""
    made = {JSON_SCHEMA_FILE: json_schema(), ASYNCAPI_FILE: asyncapi()}
    return {
        name: msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
        for name, document in made.items()
    }
