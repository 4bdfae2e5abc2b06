"""What strangers wrote never steers a terminal: one file prints, and what it prints is printable."""

import ast
import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

import mesh.cli
from mesh.cli import output
from mesh.cli.output import emit, table
from mesh.service.logs import VALUES, configure_logging
from mesh.service.printable import printable, printable_json, short, when
from tests.logs import kept_logging

STEERING = "a\x1b[2J\x1b]0;owned\x07\x9b1A\x7f\r\u202egnp\u2066\u200b\ufeff\u2028b"
HARMLESS = "Zoë — 3 €\u00a0, नमस्ते, می\u200cر, 👩\u200d🚀\\x1b"
ANY_TEXT = st.text(st.characters())  # lone surrogates, too


class Screen(io.TextIOWrapper):
    """Standard output that says that it is a terminal."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.held = io.BytesIO()
        super().__init__(self.held, encoding=encoding, newline="")

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        self.flush()
        return self.held.getvalue().decode(self.encoding)


def steers(char: str) -> bool:
    """Say by Unicode's own tables whether a character may do anything but be drawn."""
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in (
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI",
    )  # fmt: skip


@given(ANY_TEXT)
def test_nothing_of_any_text_can_steer(text: str) -> None:
    assert not any(map(steers, printable(text)))
    assert not any(map(steers, printable(text, lines=True).replace("\n", "").replace("\t", "")))
    printable(text).encode()


@given(st.recursive(ANY_TEXT.filter(lambda text: text.isascii() or _is_utf8(text)), st.lists, max_leaves=3))
def test_json_keeps_its_value(value: object) -> None:
    written = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(written) == value
    assert not any(map(steers, written))


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def test_what_scripts_and_pictures_need_stays_as_it_is() -> None:
    assert printable(HARMLESS) == HARMLESS


PRINTING: dict[str, Callable[[str], None]] = {
    "say": output.say,
    "say lines": lambda text: output.say(text, lines=True),
    "emit": lambda text: output.emit({text: [text]}),
    "emit_bytes": lambda text: output.emit_bytes(json.dumps(text, ensure_ascii=False).encode()),
    "emit_raw": lambda text: output.emit_raw(text.encode() + b"\xff\x9b"),
    "raw_out": lambda text: _raw(text.encode() + b"\xff\x9b"),
    "show": lambda text: output.show_lines(output.Line(text), output.Line((text, "bold"), text)),
    "table": lambda text: output.table((text,), [(text,)]),
    "row": lambda text: output.row(text, output.Id(text)),
}


def _raw(body: bytes) -> None:
    for out in output.raw_out():
        out.write(body)


@pytest.mark.parametrize("prints", PRINTING.values(), ids=PRINTING)
def test_no_way_of_printing_steers_a_terminal(
    prints: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", screen)
    prints(STEERING)
    assert not [char for char in screen.shown if steers(char) and char not in "\n\t"]
    assert "a" in screen.shown


def test_remarks_are_printable_too(capsys: pytest.CaptureFixture[str]) -> None:
    output.remark(STEERING)
    output.remark(STEERING, lines=True, end="")
    assert not [char for char in capsys.readouterr().err if steers(char) and char != "\n"]


def test_a_strangers_line_feed_makes_no_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("wanted: x\napproved by: ops")
    output.say("one\ntwo", lines=True)
    assert capsys.readouterr().out == "wanted: x\\x0aapproved by: ops\none\ntwo\n"


def test_off_a_terminal_json_and_bytes_are_exact(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    body = b'{"a":"\xc2\x9b\xe2\x80\xae"}'
    output.emit_bytes(body)
    output.emit_raw(b"\xff\x1b\n")
    assert capfdbinary.readouterr().out == body + b"\n\xff\x1b\n"


def test_a_terminal_whose_encoding_lacks_a_character_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = Screen("ascii")
    monkeypatch.setattr(sys, "stdout", narrow)
    output.say("Zoë")
    assert narrow.shown == "Zo\\xeb\n"


@pytest.mark.parametrize("at", [10**30, -(10**30), 1 << 63, 253_402_300_800_000_000])
def test_a_time_that_no_calendar_has_is_said_to_be_unknown(at: int) -> None:
    assert when(at) == "?"


ROOM = Path(mesh.cli.__file__).parent
PRINTERS = {"print", "echo", "secho", "pprint", "confirm", "prompt", "Console", "console"}


def printing(source: str) -> Iterator[str]:
    """Yield what in a file writes to standard output or standard error by itself."""
    tree = ast.parse(source)
    asked = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "isatty"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("sys"), attr="stdout" | "stderr" | "__stdout__" | "__stderr__"):
                if id(node) not in asked:
                    yield f"line {node.lineno}: sys.{node.attr}"
            case ast.Call(func=ast.Name(name)) if name in PRINTERS - {"prompt"}:
                yield f"line {node.lineno}: {name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name("click" | "rich"), attr=name)):
                if name in PRINTERS:
                    yield f"line {node.lineno}: {name}()"


@pytest.mark.parametrize("file", sorted(ROOM.glob("*.py")), ids=lambda file: file.stem)
def test_only_one_file_of_the_command_line_prints(file: Path) -> None:
    found = list(printing(file.read_text()))
    assert bool(found) is (file.name == "output.py"), found


def test_the_check_sees_who_prints() -> None:
    wrong = "import sys\nprint(1)\nsys.stdout.write('')\nclick.echo('')\nsys.stderr.isatty()\nConsole()\n"
    assert len(list(printing(wrong))) == 4


@pytest.mark.parametrize("style", ["console", "json"])
@pytest.mark.parametrize("values", [True, False])
def test_no_log_line_steers_a_terminal(monkeypatch: pytest.MonkeyPatch, style: str, values: bool) -> None:
    logged = Screen()
    monkeypatch.setattr(sys, "stderr", logged)
    monkeypatch.setenv(VALUES, str(int(values)))
    with kept_logging():
        configure_logging(style, "info")
        try:
            raise ValueError(STEERING)
        except ValueError:
            structlog.get_logger("x").exception(
                STEERING, subject=STEERING, many=[STEERING], key={STEERING: 1}
            )
            logging.getLogger("y").error("%s", STEERING, exc_info=values)
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", logged.shown)
    assert not [char for char in coloured if steers(char) and char not in "\n\t"]
    assert "owned" in coloured


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


# --- tables on a terminal -------------------------------------------------------------------------


def shown(monkeypatch: pytest.MonkeyPatch, columns: int, prints: Callable[[], None]) -> list[str]:
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", screen)
    prints()
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in screen.shown.splitlines()]


ONE, OTHER = "app_01M7ZDH2DWH5AVEC81SJHJH4N1", "app_01M7ZDH2DWH5AVEC81SJHJH4N2"
THIRD = "app_01M7ZDH2DXZZAVEC81SJHJH4N2"


def test_an_id_is_shown_as_far_as_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [(output.Id(each), 7) for each in (ONE, THIRD, ONE)]
    lines = shown(monkeypatch, 80, lambda: table(("request", "n"), ids))
    assert [line.split() for line in lines] == [
        ["request", "n"],
        ["app_01M7ZDH2DWH5", "7"],
        ["app_01M7ZDH2DXZZ", "7"],
        ["app_01M7ZDH2DWH5", "7"],
    ]
    lines = shown(monkeypatch, 80, lambda: table(("request",), [(output.Id(ONE),), (output.Id(OTHER),)]))
    assert lines[1:] == [ONE, OTHER]


def test_columns_go_by_priority_and_text_is_cut_then(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "word " * 40

    def print_table() -> None:
        table(
            ("id", "one", "two", "text"), [(output.Id(ONE), "x" * 20, "y" * 20, long)], spare=("two", "one")
        )

    assert [shown(monkeypatch, columns, print_table)[0].split() for columns in (80, 46, 32)] == [
        ["id", "one", "two", "text"],
        ["id", "one", "text"],
        ["id", "text"],
    ]
    for columns in (120, 80, 46, 32):
        lines = shown(monkeypatch, columns, print_table)
        assert len(lines) == 2
        assert lines[1].endswith("…")
        assert len(lines[1]) <= columns


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-5, "now"), (0, "now"), (1, "1s ago"), (59, "59s ago"), (3600, "1h ago"), (1e6, "11d ago")],
)
def test_a_time_is_an_age(monkeypatch: pytest.MonkeyPatch, seconds: float, said: str) -> None:
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert output.age(int((2e9 - seconds) * 1e6)) == said


def test_elsewhere_a_cell_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    table(("request", "since"), [(output.Id(ONE), output.At(0))], spare=("since",))
    output.row(output.Id(ONE), output.At(0))
    assert capsys.readouterr().out == (
        f"request\tsince\n{ONE}\t1970-01-01T00:00:00.000Z\n{ONE}  1970-01-01T00:00:00.000Z\n"
    )
