"""Whatever is brought, again or under a key that is withheld: the log says all that its replay needs.

Stories here are of facts alone, and long ones: nothing else that may happen ends them early.
"""

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from protocol.wire.commands import HandBack, Move, Transfer
from protocol.wire.config import Policy
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import AgentName
from tests.unit.protocol.anything import ALIKE, STORIES, agents_, values
from tests.unit.protocol.oracle.audit import Auditor
from tests.unit.protocol.worlds import Play, agent

FLEET = {
    "a": agent("a", clearance=("pii",)),
    "b": agent("b"),
    "c": agent("c", clearance=("x",)),
    "d": agent("d", clearance=("pii", "x")),
}
keys = st.sampled_from(["k", "l"])
labels = st.sampled_from([(), (), ("pii",), ("x",), ("pii", "x")])


class Step(NamedTuple):
    """One handoff: what it brings under one key, and whether it goes back or on."""

    to: AgentName
    back: bool
    key: str
    value: Any
    again: int | None
    """Bring what is carried there now, or the value that might be taken for it; None: bring `value`."""
    labels: tuple[str, ...]
    drop: bool
    must: bool
    artifact: str


steps = st.builds(
    Step,
    to=agents_,
    back=st.booleans(),
    key=keys,
    value=values,
    again=st.none() | st.integers(0, 3),
    labels=labels,
    drop=st.sampled_from([False, False, False, True]),
    must=st.sampled_from([False, False, True]),
    artifact=st.sampled_from(["", "", "s3://1", "s3://2"]),
)


def move_of(play: Play, step: Step) -> Move:
    value = step.value
    carried = play.ledger.carried().get(step.key)
    if carried is not None and step.again is not None:
        alike = next((group for group in ALIKE if carried.value in group), (carried.value,))
        value = alike[step.again % len(alike)]
    facts = (Fact(key=step.key, value=value, labels=step.labels),)
    artifacts = (Artifact(name="scan", uri=step.artifact, labels=step.labels),) if step.artifact else ()
    drop = (step.key,) if step.drop else ()
    if step.back:
        return HandBack(summary="found", facts=facts[step.drop :], artifacts=artifacts, drop=drop)
    limits = Constraints(must_carry=(step.key,) if step.must else ())
    return Transfer(
        to_agent=step.to,
        summary="please",
        facts=facts[step.drop :],
        artifacts=artifacts,
        drop=drop,
        constraints=limits,
    )


@settings(max_examples=2 * STORIES)
@given(agents_, values, labels, st.booleans(), st.lists(steps, min_size=1, max_size=12))
def test_whatever_is_carried_comes_out_of_the_log_as_it_went_in(
    entry: AgentName, value: Any, secret: tuple[str, ...], must: bool, steps: list[Step]
) -> None:
    play = Play(fleet=dict(FLEET), entry=entry, policy=Policy(max_depth=20, max_refusals=20))
    limits = Constraints(must_carry=("k",) if must else ())
    play.submit(facts=(Fact(key="k", value=value, labels=secret),), constraints=limits)
    for step in steps:
        play.move(move_of(play, step))
    auditor = Auditor()
    for event in play.events:
        auditor.follow(event, play.heard.get(event.cause))
    assert auditor.found == []
    found = rejudge(play.bodies)
    assert found.same, found
