"""Subjects: each is built and taken apart in one place, and no token can widen one."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.wire import subjects
from protocol.wire.ids import is_token


def timer_fire(request: str) -> str:
    return subjects.timer_fire(request, 4)


def note(name: str) -> str:
    """A notice's second token may be anything: it is about `_` where no subject can hold it."""
    return subjects.note(name, "r")


BUILDERS: list[Callable[..., str]] = [
    subjects.evt,
    subjects.evt_of,
    subjects.inbox,
    subjects.prop,
    subjects.ctl,
    subjects.step,
    subjects.end,
    subjects.timer_at,
    timer_fire,
    subjects.card,
    subjects.dead,
    subjects.dead_from,
    note,
    subjects.live,
    subjects.policy,
    subjects.breaker,
    subjects.schedule,
    subjects.pause,
    subjects.tick,
    subjects.schedule_timer,
]
TOKENS = {subjects.step: 4, subjects.live: 4, subjects.end: 3} | dict.fromkeys(
    (subjects.evt, subjects.prop, subjects.ctl), 2
)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (subjects.evt("billing", "r"), "mesh.evt.billing.r"),
        (subjects.evt_of("r"), "mesh.evt.*.r"),
        (subjects.inbox("billing"), "mesh.evt.billing.*"),
        (subjects.prop("a", "r"), "mesh.prop.a.r"),
        (subjects.ctl("op1", "_"), "mesh.ctl.op1._"),
        (subjects.step("a", "r", "t", "0-1"), "mesh.step.a.r.t.0-1"),
        (subjects.end("a", "r", "t"), "mesh.end.a.r.t"),
        (subjects.timer_at("r"), "mesh.timer.at.r"),
        (subjects.timer_fire("a", 4), "mesh.timer.fire.0.a"),
        (subjects.queued("prop", None, "a", 4), "mesh.prop.0.*.a"),
        (subjects.card("a"), "mesh.card.a"),
        (subjects.dead("a"), "mesh.dead.a"),
        (subjects.dead_from("c1"), "mesh.dead.guard.c1"),
        (subjects.note("c1", "r"), "mesh.note.c1.r"),
        (subjects.note("c1", "a.b"), "mesh.note.c1._"),
        (subjects.live("c1", "r", "a", "t"), "mesh.live.c1.r.a.t"),
        (subjects.policy("default"), "mesh.conf.policy.default"),
        (subjects.breaker("a"), "mesh.conf.breaker.a"),
        (subjects.schedule("nightly"), "mesh.conf.schedule.nightly"),
        (subjects.pause("nightly"), "mesh.conf.pause.nightly"),
        (subjects.tick("nightly"), "mesh.conf.tick.nightly"),
        (subjects.timer_at(subjects.schedule_timer("nightly")), "mesh.timer.at._nightly"),
    ],
)
def test_a_subject_is_spelled_as_the_streams_expect_it(made: str, expected: str) -> None:
    assert made == expected


@pytest.mark.parametrize("bad", ["", ".", "a.b", "*", ">", "a b", "a\tb", "a\r\n", "é", "$JS", "x" * 65])
@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: str(build.__name__))
def test_a_token_that_would_widen_a_subject_is_refused_wherever_it_stands(
    build: Callable[..., str], bad: str
) -> None:
    count = TOKENS.get(build, 1)
    for at in range(count):
        tokens = ["ok"] * count
        tokens[at] = bad
        with pytest.raises(ValueError, match="not a subject token"):
            build(*tokens)


@given(st.text(), st.text())
def test_whatever_is_built_has_the_tokens_it_was_built_from(to: str, request: str) -> None:
    if is_token(to) and is_token(request):
        assert subjects.parse_evt(subjects.evt(to, request)) == (to, request)
    else:
        with pytest.raises(ValueError, match="not a subject token"):
            subjects.evt(to, request)


def test_a_queued_message_names_its_sender_and_request() -> None:
    assert subjects.parse_queued("mesh.prop.3.a.r") == ("a", "r")
    assert subjects.parse_queued("mesh.ctl.3.op1.r") == ("op1", "r")
    assert subjects.parse_fire("mesh.timer.fire.3.r") == "r"
    assert subjects.parse_dead(subjects.dead("a")) == "a"
    assert subjects.parse_dead(subjects.dead_from("c1")) == subjects.GUARDS


@pytest.mark.parametrize(
    ("parse", "subject"),
    [
        (subjects.parse_evt, "mesh.evt.a"),
        (subjects.parse_evt, "mesh.evt.a.b.c"),
        (subjects.parse_evt, "mesh.prop.a.b"),
        (subjects.parse_queued, "mesh.prop.a.b"),
        (subjects.parse_queued, "mesh.evt.1.a.b"),
        (subjects.parse_queued, "other.prop.1.a.b"),
        (subjects.parse_fire, "mesh.timer.at.r"),
        (subjects.parse_fire, ""),
        (subjects.parse_dead, "mesh.dead"),
        (subjects.parse_dead, "mesh.card.a"),
    ],
)
def test_another_subject_is_not_taken_for_it(parse: Callable[[str], object], subject: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        parse(subject)


@pytest.mark.parametrize(
    ("text", "hashed"),
    # The published test vectors of FNV-1a with 32 bits, and a request id as this mesh makes them.
    [
        pytest.param("", 0x811C9DC5, id="empty"),
        pytest.param("a", 0xE40C292C, id="a"),
        pytest.param("b", 0xE70C2DE5, id="b"),
        pytest.param("foobar", 0xBF9CF968, id="foobar"),
        pytest.param("c1_01HF7YAT0060RK4CSM6MV3EE1S", 0x08D6D796, id="request"),
    ],
)
@pytest.mark.parametrize("partitions", [1, 4, 64])
def test_the_partition_is_that_of_the_servers_fnv_1a(text: str, hashed: int, partitions: int) -> None:
    assert subjects.partition(text, partitions) == hashed % partitions


@pytest.mark.parametrize("partitions", [1, 4, 64])
def test_requests_spread_over_all_partitions(partitions: int) -> None:
    found = {subjects.partition(f"c1_{n}", partitions) for n in range(1_000)}
    assert found == set(range(partitions))


def test_the_filter_of_steps_takes_any_part_for_all() -> None:
    request = "c1_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    assert subjects.journals(request) == f"mesh.step.*.{request}.*.*"
    assert subjects.journals(None, "a") == "mesh.step.a.*.*.*"
    assert subjects.journals(request, "a", "t") == f"mesh.step.a.{request}.t.*"
    with pytest.raises(ValueError, match="token"):
        subjects.journals("*", "a")
