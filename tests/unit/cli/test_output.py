"""Off a terminal results are plain: no colour, no frames, nothing cut or wrapped."""

import pytest

from mesh.cli.output import emit, table
from mesh.service.printable import short, when


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
