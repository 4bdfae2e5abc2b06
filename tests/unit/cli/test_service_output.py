"""What a service writes, as `mesh dev` shows it."""

import json
from pathlib import Path

from mesh.local.project import port_of
from mesh.local.service import Output, as_shown

HOME = Path("/home/me/shop")


def record(**said: object) -> str:
    return json.dumps({"event": "turn_failed", "level": "warning", "timestamp": "t"} | said)


def frame(filename: str, line: int, name: str) -> dict[str, object]:
    return {"filename": filename, "lineno": line, "name": name}


def shown(line: str) -> list[str]:
    return [each.text for each in as_shown(line, HOME)]


def test_what_is_routine_is_left_out_and_what_code_prints_is_not() -> None:
    assert shown(record(level="info")) == []
    assert shown("a print") == ["a print"]
    assert shown("[1, 2]") == ["[1, 2]"]
    assert shown(" ") == []
    assert shown(record(code="bug", why="two words")) == ['warning: turn_failed code=bug why="two words"']


def test_of_the_servers_lines_those_that_matter_are_shown() -> None:
    began = "[7] 2026/11/22 14:21:30.218079 "
    assert shown(f"{began}[INF] Server is ready") == []
    assert shown(f'{began}[ERR] cid:1 - Publish Violation - Subject "a"') == []
    assert shown(f"{began}[WRN] Slow") == ["warning: Slow"]
    assert shown(f"{began}[ERR] {{not ours}}") == ["error: {not ours}"]


def test_of_chained_errors_the_readers_own_frame_nearest_to_the_last_one_comes_first() -> None:
    lib = "/home/me/shop/.venv/lib/python3.11/site-packages/x.py"
    stacks = [
        {
            "exc_type": "KeyError",
            "exc_value": "'b'",
            "frames": [frame(str(HOME / "a.py"), 7, "f"), frame(lib, 1, "g")],
        },
        {"exc_type": "ValueError", "exc_value": "", "frames": [frame(str(HOME / "b.py"), 3, "h")]},
    ]
    assert shown(record(exception=stacks)) == [
        "warning: turn_failed",
        "  a.py:7 in f: KeyError: 'b'",
        "    b.py:3 in h",
        "    ValueError",
        "    a.py:7 in f",
        "    .venv/lib/python3.11/site-packages/x.py:1 in g",
        "    KeyError: 'b'",
    ]


def test_what_earlier_starts_wrote_is_not_shown_and_half_a_line_waits(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    output = Output(log, HOME, 4)
    assert list(output.more()) == []
    log.write_text("old\nne")
    assert list(output.more()) == []
    with log.open("a") as more:
        more.write("w\n")
    assert [line.text for line in output.more()] == ["new"]


def test_a_folder_has_one_port_and_it_is_its_own() -> None:
    ports = {name: port_of(Path("/home/me") / name / ".mesh") for name in ("a", "b", "c")}
    assert len(set(ports.values())) == 3
    assert ports["a"] == port_of(Path("/home/me/a/.mesh"))
    assert all(1024 < port < 32_768 for port in ports.values())
