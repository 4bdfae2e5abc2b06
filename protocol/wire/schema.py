"""The wire contract for programs in other languages: a JSON Schema and an AsyncAPI document.

Both are generated from the types and the subjects that this package reads and writes with, so that
they cannot say anything else; what stands in `protocol/schema/` is compared with them in the tests.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from protocol.wire import subjects
from protocol.wire.commands import Control, Proposal, Submit
from protocol.wire.config import BreakerEntry, Fleet, Policy
from protocol.wire.events import VERSION, AnyEvent, Ended, EscalationRaised, TurnSuspended, type_of
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
"""The tagged unions by name, and what comes before a member's tag to make the name of its definition."""

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
    MemoryFolded,
    Questions,
)
"""Documents beside requests and facts: hints, records for people, and what guards or agents share."""

_EVENTS = tuple(map(type_of, AnyEvent.__args__))


def _definitions(ref_template: str) -> Json:
    """Return the definitions of everything on the wire, by name; `{name}` in the template is a name."""
    roots = (AnyEvent, Submit, Proposal, Control, Handoff, Policy, Fleet, *BESIDE_THE_LOG)
    _, generated = msgspec.json.schema_components(roots, ref_template="{name}")
    found: Json = msgspec.json.decode(msgspec.json.encode(generated))  # defaults as JSON has them
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
    """Return a schema with our names in its references, without msgspec's own keywords."""
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
            "One event of a request's log. In `$defs`: Submit, Proposal, Control (what is asked for), "
            "Event (what is true), Handoff, Policy, Fleet, Notice, LaneAnswer, DeadLetter, Card, LiveNote, "
            "BreakerEntry, FreezeEntry, MemoryRecord, MemoryForgotten, MemoryFolded, Questions. "
            "Readers ignore fields that they do not know."
        ),
        "$ref": "#/$defs/Event",
        "$defs": _definitions("#/$defs/{name}"),
    }


# --- AsyncAPI -------------------------------------------------------------------------------------

PARAMETERS: Mapping[str, str] = {
    "to": "Who has to act: an agent, a client or `human`; `_` for nobody.",
    "request": "The request's id, `<submitter>_<ULID>`; for a control message `_` means the whole mesh.",
    "sender": "Who sends it. The broker lets each name publish under itself only.",
    "name": "Whose it is.",
    "agent": "An agent's name.",
    "turn": "The id of the event that opened the turn.",
    "step": "`<round>-<n>`, or `end` when a guard ended the turn.",
    "client": "Who submitted the request.",
    "policy": "A policy's name.",
    "model": "A model's id, or one derived from it where it is no token.",
    "conversation": "A conversation's name, or one derived from it where it is no token.",
    "key": "A fact's key, or one derived from it where it is no token; `_` for all that came before.",
}


class Channel(NamedTuple):
    """One family of subjects, and which messages it carries."""

    address: str
    description: str
    messages: tuple[str, ...] = ()


def _address(build: Any, *parameters: str) -> str:
    """Return a subject with `{name}` where a parameter stands, by the function that builds the subject."""
    marks = [f"PARAMETER-{name}" for name in parameters]
    address: str = build(*marks)
    for mark, name in zip(marks, parameters, strict=True):
        address = address.replace(mark, f"{{{name}}}")
    return address


CHANNELS: Mapping[str, Channel] = {
    "proposals": Channel(
        _address(subjects.prop, "sender", "request"),
        "What is asked for. A work queue: acknowledged by the broker once stored, decided by a guard.",
        ("Submit", "proposal.move", "proposal.turn_failed", "proposal.effect_doubted"),
    ),
    "lane": Channel(
        _address(subjects.lane, "sender", "request"),
        "The same, asked of a guard over core NATS and stored nowhere. It answers once the verdict is in the "
        "log; without that answer the message goes to the queue.",
        ("Submit", "proposal.move", "proposal.turn_failed", "proposal.effect_doubted"),
    ),
    "controls": Channel(
        _address(subjects.ctl, "sender", "request"),
        "What people and clients say besides. A work queue, heard before proposals.",
        tuple(f"control.{kind.__struct_config__.tag}" for kind in Control.__args__),
    ),
    "log": Channel(
        _address(subjects.evt, "to", "request"),
        "What is true: append-only, written by guards alone, one ordered history for each request. "
        "An event lies in the inbox of the name that must act on it.",
        _EVENTS,
    ),
    "notes": Channel(
        _address(subjects.note, "to", "request"),
        "A wake-up without a body, or a notice. Core NATS: a hint, never the only place of a truth.",
        ("Notice",),
    ),
    "deadLetters": Channel(
        _address(subjects.dead, "name"),
        "Inbox events that an agent could not read, kept with the reason.",
        ("DeadLetter",),
    ),
    "guardsDeadLetters": Channel(
        _address(subjects.dead_from, "sender"),
        "Messages that no guard could read or act on, kept with the reason; a list for each sender.",
        ("DeadLetter",),
    ),
    "fleet": Channel(subjects.FLEET, "Who exists and what each may do; the admin's word.", ("Fleet",)),
    "policies": Channel(_address(subjects.policy, "policy"), "The rules by name.", ("Policy",)),
    "steps": Channel(
        _address(subjects.step, "agent", "request", "turn", "step"),
        "The journal of a turn, one message a subject. Its format belongs to the agent's runtime.",
    ),
    "ends": Channel(
        _address(subjects.end, "agent", "request", "turn"),
        "The end of a turn that a guard ended, as `ended` of a notice. Written by guards alone.",
    ),
    "cards": Channel(
        _address(subjects.card, "agent"),
        "What a running agent says of itself, for display; no verdict rests on it.",
        ("Card",),
    ),
    "live": Channel(
        _address(subjects.live, "client", "request", "agent", "turn"),
        "What a running turn shows while it works. Core NATS, for display.",
        ("LiveNote",),
    ),
    "breakers": Channel(
        _address(subjects.breaker, "agent"),
        "The circuit breaker of an agent, as guards keep it for each other. No entry: it is closed.",
        ("BreakerEntry",),
    ),
    "freeze": Channel(
        subjects.FREEZE, "Tells if the whole mesh is frozen. No entry: it is not.", ("FreezeEntry",)
    ),
    "questions": Channel(
        _address(subjects.questions, "client", "request"),
        "What a request asks its client and has no reply yet; written by guards alone.",
        ("Questions",),
    ),
    "memories": Channel(
        _address(subjects.memory, "client", "conversation", "key"),
        "What conversations remember, by fact, and what they are to forget; written by guards alone.",
        ("MemoryRecord", "MemoryForgotten", "MemoryFolded"),
    ),
}


class Operation(NamedTuple):
    """Who sends to a channel or receives from it."""

    action: str
    channel: str
    summary: str
    only: tuple[str, ...] = ()
    """Some of the channel's messages; all of them if empty."""


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
        "An agent asks for a move, or says that its turn broke.",
        ("proposal.move", "proposal.turn_failed", "proposal.effect_doubted"),
    ),
    "agentJournals": Operation("send", "steps", "An agent records a step before it uses it."),
    "agentPresentsItself": Operation("send", "cards", "An agent says what it is."),
    "agentShowsProgress": Operation("send", "live", "An agent shows what it does."),
    "operatorControls": Operation("send", "controls", "An operator steps in."),
    "guardHearsProposals": Operation("receive", "proposals", "A guard decides what is asked for."),
    "guardAnswersQuestions": Operation("receive", "lane", "A guard decides what it is asked, and answers."),
    "guardHearsControls": Operation("receive", "controls", "A guard records what people say."),
    "guardAppends": Operation("send", "log", "A guard appends what is true, by compare-and-set."),
    "guardNotifies": Operation("send", "notes", "A guard wakes somebody, or tells of a mistake."),
    "anyoneIsNotified": Operation("receive", "notes", "Each name reads its own notes."),
    "agentGivesUp": Operation("send", "deadLetters", "An agent that cannot read an event keeps it here."),
    "guardGivesUp": Operation("send", "guardsDeadLetters", "A guard keeps what it cannot read or act on."),
    "guardKnowsFleet": Operation("receive", "fleet", "A guard judges by the fleet as it is now."),
    "guardKnowsPolicies": Operation("receive", "policies", "A guard opens requests under a policy."),
    "clientSeesProgress": Operation("receive", "live", "A client is shown what its request's turns do."),
    "agentsKnowCards": Operation("receive", "cards", "An agent is told what its peers say of themselves."),
    "guardCounts": Operation("send", "breakers", "A guard counts what speaks for and against an agent."),
    "guardKnowsBreakers": Operation("receive", "breakers", "A guard looks before it gives an agent work."),
    "guardFreezes": Operation("send", "freeze", "A guard does what an operator says to the whole mesh."),
    "guardKnowsFreeze": Operation("receive", "freeze", "A guard stops deciding, and goes on."),
    "guardRemembers": Operation("send", "memories", "A guard keeps what a request leaves, or forgets it."),
    "guardRecalls": Operation("receive", "memories", "A guard opens a request with what is remembered."),
    "clientReadsItsMemory": Operation("receive", "memories", "A client reads its own conversations."),
    "viewerReads": Operation("receive", "log", "A viewer reads everything that is true."),
}


def asyncapi() -> Json:
    """Return the AsyncAPI (3.1.0) document: subjects, what is sent there, and who sends it."""
    schemas = _definitions("#/components/schemas/{name}")
    carried = dict.fromkeys(name for channel in CHANNELS.values() for name in channel.messages)
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Handoff Mesh",
            "version": f"{VERSION}.0.0",
            "description": (
                "Agents hand work to each other by asking for it; a guard decides; what it decides is "
                "an event, and the event is the message in the next agent's inbox."
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
    """Return both documents as text, by the name of their file."""
    made = {JSON_SCHEMA_FILE: json_schema(), ASYNCAPI_FILE: asyncapi()}
    return {
        name: msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
        for name, document in made.items()
    }
