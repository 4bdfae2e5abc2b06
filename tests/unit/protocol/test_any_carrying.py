"""Whatever is brought, again or under a key that is withheld: the log says what is carried, and who sees it.

Stories here are of facts alone, and long ones: nothing else that may happen ends them early.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.replay.rejudge import rejudge
from protocol.wire.config import Policy
from protocol.wire.events import HandoffAdmitted
from protocol.wire.handoff import Artifact, Constraints, Fact
from protocol.wire.ids import AgentName
from protocol.wire.moves import HandBack, Move, Transfer
from tests.unit.protocol.anything import ALIKE, STORIES, agents_, values
from tests.unit.protocol.oracle.account import same
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
    carried = play.ledger.carried().facts.get(step.key)
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


stories = st.tuples(agents_, values, labels, st.booleans(), st.lists(steps, min_size=1, max_size=12))


def played(
    entry: AgentName, value: Any, secret: tuple[str, ...], must: bool, steps: list[Step]
) -> Iterator[tuple[Play, Move | None]]:
    """Yield a request with each move that is admitted; first as it is opened, with none."""
    play = Play(fleet=dict(FLEET), entry=entry, policy=Policy(max_depth=20, max_refusals=20))
    limits = Constraints(must_carry=("k",) if must else ())
    play.submit(facts=(Fact(key="k", value=value, labels=secret),), constraints=limits)
    yield play, None
    for step in steps:
        move = move_of(play, step)
        if isinstance(play.move(move), HandoffAdmitted):
            yield play, move


@settings(max_examples=2 * STORIES)
@given(stories)
def test_what_was_handed_over_is_what_every_later_reader_who_is_cleared_sees(story: Any) -> None:
    """And nobody else does: a key has every label that it was ever handed over with."""
    said: dict[str, Any] = {}
    labels: dict[str, set[str]] = {}
    for play, move in played(*story):
        if isinstance(move, Transfer | HandBack):
            said = {key: value for key, value in said.items() if key not in move.drop}
        facts = (Fact(key="k", value=story[1], labels=story[2]),) if move is None else move.facts
        for each in facts:
            said[each.key] = each.value
            labels.setdefault(each.key, set()).update(each.labels)
        reader = play.holder
        seen = {each.key: each for each in reader.work.handoff.facts if each.key != "text"}
        cleared = set(FLEET[reader.agent].clearance)
        assert same({key: each.value for key, each in seen.items()}, _visible(said, labels, cleared))
        assert all(set(each.labels) == labels[key] for key, each in seen.items())


def _visible(said: dict[str, Any], labels: dict[str, set[str]], cleared: set[str]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if labels[key] <= cleared}


@settings(max_examples=2 * STORIES)
@given(stories)
def test_whatever_is_carried_comes_out_of_the_log_as_it_went_in(story: Any) -> None:
    *_, (play, _) = played(*story)
    auditor = Auditor()
    for event in play.events:
        auditor.follow(event, play.heard.get(event.cause))
    assert auditor.found == []
    found = rejudge(play.bodies)
    assert found.same, found
