"""`--where`: what it means, and where it is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.ops.where import NAMES, Clause, Filter, WhereWrong, clauses_in, filter_from, parse, text_of


def test_every_clause_counts() -> None:
    wanted = parse(
        "status=open agent=front  agent=billing\trule=max_depth client=app cost=$0.5 version=front=a=b"
    )
    tags = (
        "status:open",
        "agent:front",
        "agent:billing",
        "rule:max_depth",
        "client:app",
        "version:front=a%3Db",
    )
    assert wanted == Filter(tags=tags, nano_dollars=500_000_000)


def test_a_quoted_value_may_hold_spaces_and_quotes() -> None:
    assert parse(r'text="late \"parcel\"" conversation="a b"') == Filter(
        text='late "parcel"', conversation="a b"
    )


def test_a_time_is_a_moment_or_a_span_ago() -> None:
    assert parse("since=1970-01-01T00:00:01Z until=1970-01-01T02:00:02+02:00") == Filter(
        since=1_000_000, until=2_000_000
    )
    day, hour = parse("since=1d").since, parse("since=1h").since
    assert day is not None
    assert hour is not None
    assert hour - day >= 23 * 3_600 * 1_000_000


def test_nothing_is_every_request() -> None:
    assert parse("") == parse(" \n") == Filter()


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("agnt=front", 1, "did you mean agent?"),
        ("rule=depth colour=red", 12, "one of status, agent"),
        ("agent", 1, "NAME=VALUE"),
        ("agent=a =b", 9, "NAME=VALUE"),
        ("agent=a agent=", 9, "is no name"),
        ('  text="late', 3, "a quote has no end"),
        ('text="late"parcel', 1, "no space follows it"),
        ("status=open status=human", 13, "there twice"),
        ("status=angry", 1, "one of open, human"),
        ("cost=much", 1, "no amount of dollars"),
        ("since=1y", 1, "is no time"),
        ("version=front", 1, "AGENT=VERSION"),
        ("text=" + "x" * 201, 1, "200 characters"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, at: int, why: str) -> None:
    with pytest.raises(WhereWrong) as wrong:
        parse(text)
    assert (wrong.value.at, wrong.value.code) == (at, "cli.usage")
    assert f"character {at}, " in str(wrong.value)
    assert why in str(wrong.value)
    assert len(str(wrong.value)) < 250


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), st.text()), max_size=6))
def test_what_is_written_is_read_as_the_same(said: list[tuple[str, str]]) -> None:
    clauses = [Clause(name, value) for name, value in said]
    assert [each[:2] for each in clauses_in(text_of(clauses))] == said


@given(st.text(alphabet=st.sampled_from('agentrulesi ="\\\n1d.')) | st.text())
def test_any_other_text_is_a_mistake_with_a_place(text: str) -> None:
    try:
        filter_from(clauses_in(text))
        at = 1
    except WhereWrong as wrong:
        at = wrong.at
    assert 1 <= at <= max(1, len(text))
