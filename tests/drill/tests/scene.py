"""A drill's evidence made by hand: one request that goes through much, played through the pure domain.

The log is what a guard would have written. The journal and the ledger are what a sound runtime would have:
a model call, an idempotent effect that ran twice because its process was killed, a round that was overtaken
and fenced, an effect that was in doubt and settled, and another agent's reconcilable one.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from protocol.domain import rules
from protocol.wire import codec
from protocol.wire.commands import ReplyToAsk, Resolve, Settle, Submit
from protocol.wire.events import AnyEvent
from protocol.wire.handoff import Rule
from protocol.wire.moves import Escalate, Transfer
from protocol.wire.records import DeadLetter
from tests.drill.evidence import Asked, Deed, Evidence, Fault, Kind, StepName, Submitted
from tests.drill.reading import Step, digest_of
from tests.unit.protocol import worlds
from tests.unit.protocol.worlds import Play, ask, complete, hand_back, transfer

REQUEST = str(worlds.REQUEST)
SECOND = 1_000_000
"""In µs."""
DONE = ["c1", "c2", "c3", "c4"]


@dataclass
class Scene:
    """A request being played, with its journals and the ledger."""

    play: Play = field(default_factory=Play)
    steps: dict[StepName, bytes] = field(default_factory=dict)
    deeds: list[Deed] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    delivery: int = 1
    """Which delivery of its event whoever journals now has in hand."""

    def pass_s(self, seconds: float) -> None:
        self.play.now += round(seconds * SECOND)

    def step(self, name: str, kind: str, call: str = "", *, tool: str = "", key: str = "") -> None:
        """Journal a step of the turn that is open, a millisecond later."""
        self.pass_s(0.001)
        turn = self.play.holder
        record = Step(
            kind=kind,
            name=tool,
            digest=digest_of(call) if call else "",
            nonce=f"{turn.agent}-1-{self.delivery}",
            at=self.play.now,
            key=key,
            value=call if kind == "remark" else None,
        )
        where = StepName(turn.agent, REQUEST, turn.work.journal_id, name)
        self.steps[where] = msgspec.json.encode(record)

    def deed(self, kind: Kind, tool: str, call: str, key: str = "", pid: int = 100) -> None:
        self.pass_s(0.001)
        self.deeds.append(Deed(self.play.now, kind, tool, key, REQUEST, call, pid))

    def fault(self, kind: str, identity: str, name: str, seconds: float) -> None:
        """Do something to a process that takes so many seconds, from now on."""
        begin = self.play.now
        self.pass_s(seconds)
        self.faults.append(Fault(kind, identity, name, begin, self.play.now))
        self.delivery += 1

    def evidence(self) -> Evidence:
        return Evidence(
            submitted=(Submitted(REQUEST, worlds.START, True, "every-tool", ("completed",)),),
            bodies={REQUEST: tuple(self.play.bodies)},
            steps=dict(self.steps),
            deeds=tuple(self.deeds),
            faults=tuple(self.faults),
            lease_s=1.0,
            ended_at=self.play.now + 60 * SECOND,
        )


def opened() -> Scene:
    """Return a request that is open and held by `a`."""
    scene = Scene()
    scene.play.submit()
    return scene


def whole() -> Scene:
    """Return a request that went through everything and was completed."""
    scene = opened()
    play = scene.play
    scene.deed("model", "stand-in", "c1")
    scene.step("0-0", "model", "c1", tool="stand-in")
    scene.step("0-1", "intent", "c2", tool="pay", key="k2")
    scene.deed("idempotent", "pay", "c2", "k2")
    scene.fault("effect.ran", "a-1", "a", 2.0)
    scene.deed("idempotent", "pay", "c2", "k2", pid=101)
    scene.step("0-1d", "effect", "c2", tool="pay", key="k2")
    play.move(transfer("a"))  # to itself: refused
    scene.step("0-2", "fence")
    scene.step("1-0", "remark", "c3")
    scene.step("1-1", "intent", "c3", tool="post", key="k3")
    scene.deed("once", "post", "c3")
    scene.fault("kill", "a-2", "a", 2.0)
    play.doubt("post")
    scene.pass_s(1.0)
    play.control(Settle, turn=play.turn, round=1, outcome="done", result="c3", by="Ann")
    scene.step("0-3", "fence")
    scene.step("1-2", "fence")
    scene.step("2-0", "intent", "c3", tool="post", key="k3")
    scene.step("2-0d", "effect", "c3", tool="post", key="k3")
    scene.pass_s(0.1)
    play.move(transfer("b"))
    scene.step("0-0", "intent", "c4", tool="ship", key="k4")
    scene.deed("reconcilable", "ship", "c4", "k4", pid=200)
    scene.step("0-0d", "effect", "c4", tool="ship", key="k4")
    play.move(hand_back())
    play.move(ask())
    play.control(ReplyToAsk, "c1", turn=play.turn, round=0, value="this one")
    play.fail()
    scene.pass_s(10.0)
    play.finish()
    play.move(Escalate(summary="a person, please"))
    play.control(Resolve, turn=play.turn, by="Ann", again=True)
    play.move(complete({"done": DONE}))
    return scene


def clean() -> Evidence:
    """Return evidence that nothing can be said against."""
    return whole().evidence()


# --- changing it ------------------------------------------------------------------------------------


def changed(evidence: Evidence, **fields: Any) -> Evidence:
    return replace(evidence, **fields)


def with_bodies(evidence: Evidence, bodies: Any) -> Evidence:
    return replace(evidence, bodies={REQUEST: tuple(bodies)})


def events_in(evidence: Evidence) -> list[AnyEvent]:
    return [codec.decode_event(body) for body in evidence.bodies[REQUEST]]


def with_event_again(evidence: Evidence, kind: type[AnyEvent], **fields: Any) -> Evidence:
    """Put the first event of a kind in once more, right behind itself, with other fields."""
    bodies: list[bytes] = []
    for event, body in zip(events_in(evidence), evidence.bodies[REQUEST], strict=True):
        bodies.append(body)
        if isinstance(event, kind) and len(bodies) == event.n + 1:
            bodies.append(codec.encode(msgspec.structs.replace(event, **fields)))
    assert len(bodies) > len(evidence.bodies[REQUEST])
    return with_bodies(evidence, bodies)


def with_deed(evidence: Evidence, of: str, /, **fields: Any) -> Evidence:
    """Put the first deed of a call in once more, with other fields."""
    deed = next(deed for deed in evidence.deeds if deed.call == of)
    return replace(evidence, deeds=(*evidence.deeds, replace(deed, **fields)))


def without_deeds(evidence: Evidence, call: str) -> Evidence:
    return replace(evidence, deeds=tuple(deed for deed in evidence.deeds if deed.call != call))


def step_named(evidence: Evidence, agent: str, name: str) -> StepName:
    return next(where for where in evidence.steps if (where.agent, where.step) == (agent, name))


def without_step(evidence: Evidence, agent: str, name: str) -> Evidence:
    gone = step_named(evidence, agent, name)
    return replace(evidence, steps={where: body for where, body in evidence.steps.items() if where != gone})


def with_step(evidence: Evidence, agent: str, under: str, copied: str, /, **fields: Any) -> Evidence:
    """Put a step in under another name, with other fields; under its own name it is changed."""
    source = step_named(evidence, agent, copied)
    record = msgspec.json.decode(evidence.steps[source], type=Step)
    body = msgspec.json.encode(msgspec.structs.replace(record, **fields))
    return replace(evidence, steps={**evidence.steps, source._replace(step=under): body})


def admitted_in_a_circle() -> Evidence:
    """A transfer to somebody on the path, by a guard that lets it pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(rules.RULES, Rule.CYCLE, lambda case: None)
        scene = opened()
        scene.play.move(worlds.transfer("a"))
        scene.play.move(worlds.complete())
    return scene.evidence()


def sent(submit: Submit) -> Submitted:
    return Submitted(REQUEST, 1, True, "", ("completed",), submit)


def asked_in(scene: Scene) -> list[Asked]:
    """Return every move that was asked for in a scene, as agents write them down."""
    return [Asked(REQUEST, each.turn, each.round, each.move) for each in scene.play.heard.values()]


def asked_for_something_else() -> Evidence:
    asked = asked_in(whole())
    transfers = [n for n, each in enumerate(asked) if isinstance(each.move, Transfer)]
    last = asked[transfers[-1]]
    asked[transfers[-1]] = replace(last, move=msgspec.structs.replace(last.move, no_return=True))
    return changed(clean(), asked=asked)


def letter(code: str, subject: str = "mesh.prop.3.a.r", request: str = REQUEST) -> bytes:
    made = DeadLetter(at=1, by="guard", code=code, detail="so it is", subject=subject, request=request)
    return msgspec.json.encode(made)
