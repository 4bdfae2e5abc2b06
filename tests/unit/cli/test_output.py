"""Off a terminal results are plain: no colour, no frames, nothing cut or wrapped."""

import pytest

from mesh.cli.facts import parse_facts
from mesh.cli.output import emit, short, table, when
from mesh.ops.errors import UsageWrong


def test_a_table_off_a_terminal_is_tab_separated_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    long = "app_" + "0" * 400
    table(("request", "why"), [(long, "two\nlines\tand a tab"), (1, None)])
    assert capsys.readouterr().out == f"request\twhy\n{long}\ttwo lines and a tab\n1\t\n"


def test_json_off_a_terminal_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"a": [1, "é"]})
    assert capsys.readouterr().out == '{"a":[1,"é"]}\n'


def test_times_are_utc_and_iso() -> None:
    assert when(1_700_000_000_123_456) == "2023-11-14T22:13:20.123Z"


def test_a_long_text_is_cut_and_says_so() -> None:
    assert short("one\n two", 20) == "one two"
    assert short("abcdef", 4) == "abc…"


def test_facts_are_text_unless_marked_as_json() -> None:
    assert parse_facts(["name=Ada=Eve", "n:=3", "list:=[1]", "empty="]) == {
        "name": "Ada=Eve",
        "n": 3,
        "list": [1],
        "empty": "",
    }
    assert parse_facts(None) == {}


@pytest.mark.parametrize("wrong", [["name"], ["=x"], [":=1"], ["n:=three"], ["a=1", "a=2"]])
def test_a_wrong_fact_is_a_matter_of_usage(wrong: list[str]) -> None:
    with pytest.raises(UsageWrong):
        parse_facts(wrong)
