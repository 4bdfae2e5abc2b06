"""What a person reads at the end of a drill, and how it names what stands still."""

from collections.abc import Callable

import pytest

from protocol.wire.commands import Freeze
from tests.drill.check import check
from tests.drill.evidence import Submitted
from tests.drill.report import MOST_SHOWN, lines
from tests.drill.tests.scene import REQUEST, SECOND, Scene, changed, clean, opened, with_bodies, with_deed
from tests.unit.protocol.worlds import ask, escalate


def test_a_drill_without_a_breach_says_so_and_counts_everything() -> None:
    told = "\n".join(" ".join(line.split()) for line in lines(check(clean())))
    assert "requests 1 (1 acknowledged)" in told
    assert "faults 2 (1 effect.ran, 1 kill)" in told
    assert "lost 0" in told
    assert "in doubt 0 (1 came into doubt, the rest is settled)" in told
    assert told.endswith("no promise was broken")


def test_a_breach_says_what_was_promised_and_where_to_look() -> None:
    told = lines(check(opened().evidence()))
    assert "nothing_lost: what was acknowledged ends, or waits for a person (1 breach)" in told
    assert any(
        REQUEST in line and "mesh request show" in line and "a (working, round 0)" in line for line in told
    )
    assert told[-1] == "PROMISES WERE BROKEN"


def test_many_breaches_of_one_promise_are_not_all_printed() -> None:
    evidence = clean()
    for n in range(MOST_SHOWN + 5):
        evidence = with_deed(evidence, "c4", key=f"k4-{n}", call=f"x{n}")
    told = lines(check(evidence))
    assert any(line.strip() == "… and 5 more (--json has all)" for line in told)


def test_without_a_ledger_nothing_is_claimed_of_the_world_outside() -> None:
    told = lines(check(changed(clean(), deeds=(), with_ledger=False)))
    assert any(line.split(maxsplit=4)[-1] == "no ledger: not checked" for line in told)


def test_a_wide_word_moves_no_column() -> None:
    told = lines(check(clean()))
    table = told[: told.index("")]
    assert len({line.index(line.split("  ")[-1].strip()) for line in table}) == 1


def journaling(scene: Scene) -> None:
    scene.step("0-0", "remark")


CASES: dict[str, tuple[Callable[[Scene], object], str]] = {
    "a working agent": (lambda scene: None, "a, which has journaled nothing of this round"),
    "a journaling agent": (journaling, "a, whose last step is 0-0 (remark)"),
    "a retry": (lambda scene: scene.play.fail(), "its retry, which was due"),
    "a reply": (lambda scene: scene.play.move(ask("c1")), "the reply of c1"),
    "a doubt": (lambda scene: scene.play.doubt(), "somebody to settle the effect at 0-3"),
    "a person": (lambda scene: scene.play.move(escalate()), "a person's decision"),
    "a thaw": (lambda scene: scene.play.control(Freeze), "a thaw"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_open_turn_is_named_with_what_it_waits_for(name: str) -> None:
    happens, expected = CASES[name]
    scene = opened()
    scene.pass_s(1.0)
    happens(scene)
    evidence = scene.evidence()
    since = scene.play.now
    found = check(changed(evidence, silent=frozenset({REQUEST})))
    (unrested,) = found.unrested
    assert unrested.waits_for.startswith(expected)
    turn = scene.play.holder
    assert (unrested.request, unrested.turn, unrested.agent) == (REQUEST, turn.id, turn.agent)
    assert unrested.round == 0
    assert unrested.for_s == round((evidence.ended_at - unrested.since) / 1e6, 1)
    assert since - 2 * SECOND <= unrested.since <= since
    told = "\n".join(lines(found))
    assert f"{REQUEST}  round 0 of turn {turn.id}, waits for {expected}" in told


def test_an_escalation_that_never_came_is_named() -> None:
    scene = opened()
    scene.play.fail(permanent=True)
    evidence = with_bodies(scene.evidence(), scene.play.bodies[:-1])
    (unrested,) = check(changed(evidence, silent=frozenset({REQUEST}))).unrested
    assert unrested.waits_for == "its escalation"


@pytest.mark.parametrize(
    ("acknowledged", "expected"),
    [(True, "the verdict on its submit"), (False, "its submit's acknowledgement")],
)
def test_a_submit_without_an_event_is_named(acknowledged: bool, expected: str) -> None:
    evidence = Scene().evidence()
    submitted = (Submitted(REQUEST, 1, acknowledged),)
    found = check(changed(evidence, submitted=submitted, bodies={}, silent=frozenset({REQUEST})))
    (unrested,) = found.unrested
    assert (unrested.turn, unrested.round, unrested.waits_for) == ("", None, expected)


def test_what_rests_is_not_named() -> None:
    assert check(opened().evidence()).unrested == ()
