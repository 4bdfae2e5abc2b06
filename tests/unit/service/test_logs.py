"""Tracebacks in the logs: where and what, but not what an exception says, which may be anybody's data."""

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import structlog

from mesh.agent.tools import tool
from mesh.model.loop import drive
from mesh.service.logs import VALUES, configure_logging
from mesh.testing import StrictModel, calls, says, turn
from tests.logs import captured_logs, kept_logging, log_state, plain_logs, put_back
from tests.servers import ROOT

CANARY = "ada@canary.example"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VALUES, raising=False)
    with kept_logging():
        yield


def plain() -> None:
    raise ValueError(f"no row for {CANARY}")


def with_a_note() -> None:
    error = ValueError("no row")
    error.add_note(f"looked for {CANARY}")
    raise error


def caused() -> None:
    try:
        plain()
    except ValueError as error:
        raise RuntimeError(f"{CANARY} again") from error


def while_handling() -> None:
    try:
        plain()
    except ValueError:
        raise KeyError(CANARY)  # noqa: B904 - the context is what is looked at


def grouped() -> None:
    found = []
    for each in (plain, caused):
        try:
            each()
        except Exception as error:
            found.append(error)
    raise ExceptionGroup(f"{CANARY} in a group", found)


def misspelt() -> None:
    compile(f"'{CANARY}' = 1", "rules", "exec")


BROKEN = [plain, with_a_note, caused, while_handling, grouped, misspelt]
LOGGED: dict[str, Callable[[], object]] = {
    "structlog": lambda: structlog.get_logger().warning("broke", exc_info=True),
    "standard library": lambda: logging.getLogger("somebody").warning("broke", exc_info=True),
}


def logged(how: str, break_: Callable[[], None]) -> None:
    try:
        break_()
    except Exception:
        LOGGED[how]()


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("how", LOGGED)
@pytest.mark.parametrize("break_", BROKEN, ids=lambda break_: break_.__name__)
def test_what_an_exception_says_is_not_in_the_log(
    break_: Callable[[], None], how: str, style: str, capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logging(style)
    logged(how, break_)
    said = capfd.readouterr().err
    assert "broke" in said
    assert "canary" not in said
    assert break_.__name__ in said, "every frame's function"
    assert "test_logs.py" in said
    assert "Error" in said or "ExceptionGroup" in said


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("how", LOGGED)
def test_it_is_there_for_whoever_asks_for_it(
    how: str, style: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VALUES, "1")
    configure_logging(style)
    logged(how, caused)
    assert f"no row for {CANARY}" in capfd.readouterr().err
    monkeypatch.delenv(VALUES)
    configure_logging(style)
    logged(how, caused)
    assert CANARY not in capfd.readouterr().err


def test_every_frame_of_what_led_to_it_keeps_its_place(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("json")
    logged("structlog", grouped)
    (stack,) = json.loads(capfd.readouterr().err)["exception"]
    assert (stack["exc_type"], stack["is_group"]) == ("ExceptionGroup", True)
    first, second = stack["exceptions"]
    assert [each["exc_type"] for each in first] == ["ValueError"]
    assert [(each["exc_type"], each["is_cause"]) for each in second] == [
        ("RuntimeError", False),
        ("ValueError", True),
    ]
    frames = [frame for each in second for frame in each["frames"]]
    assert [frame["name"] for frame in frames] == ["grouped", "caused", "caused", "plain"]
    assert all(frame["lineno"] > 0 and frame["filename"] == __file__ for frame in frames)


async def test_a_tool_that_breaks_tells_the_log_nothing_of_whom_it_was_about(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @tool
    def find(email: str) -> dict[str, str]:
        """Find somebody."""
        raise ValueError(f"no row for {email}")

    configure_logging("json")
    with StrictModel(calls(("find", {"email": CANARY})), says("ok")) as model:
        await drive(turn(), model, instructions="x", tools=[find])
    said = capfd.readouterr().err
    assert "tool_broke" in said
    assert "ValueError" in said
    assert CANARY not in said


def test_a_task_that_nobody_waited_for_is_named_without_its_text(capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging("json")

    async def lost() -> None:
        plain()

    async def main() -> None:
        task = asyncio.create_task(lost())
        await asyncio.wait({task})
        del task
        gc.collect()

    asyncio.run(main())
    said = capfd.readouterr().err
    assert "Task exception was never retrieved" in said
    assert "plain" in said
    assert CANARY not in said


UNCAUGHT = {
    "the process": "broken()",
    "a thread": "thread = threading.Thread(target=broken); thread.start(); thread.join()",
}


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("where", UNCAUGHT)
def test_what_nobody_catches_in_a_service_is_logged_without_its_text(where: str, style: str) -> None:
    def run(values: str) -> str:
        program = (
            "import threading\n"
            "from mesh.service.logs import configure_logging\n"
            "def broken():\n"
            f"    raise ValueError('no row for ' + {CANARY!r})\n"
            f"configure_logging({style!r}, for_good=True)\n"
            f"{UNCAUGHT[where]}\n"
        )
        around = {**os.environ, "PYTHONPATH": str(ROOT), VALUES: values}
        ended = subprocess.run(
            [sys.executable, "-c", program], env=around, capture_output=True, text=True, check=False
        )
        assert ended.returncode == (1 if where == "the process" else 0)
        assert "ValueError" in ended.stderr
        assert "broken" in ended.stderr
        return ended.stderr

    said = run("")
    assert "uncaught" in said
    assert "canary" not in said
    assert CANARY in run("1")


CHANGES: dict[str, Callable[[], object]] = {
    "level": lambda: configure_logging("json", "error"),
    "for good": lambda: configure_logging("json", "critical", for_good=True),
    "processors": lambda: structlog.get_config()["processors"].clear(),
    "root": lambda: logging.getLogger().addHandler(logging.NullHandler()),
    "hook": lambda: setattr(threading, "excepthook", sys.excepthook),
}


@pytest.mark.parametrize("level", [logging.ERROR, logging.CRITICAL])
def test_lines_are_captured_that_the_level_at_the_time_would_drop(level: int) -> None:
    with plain_logs(level), captured_logs() as lines:
        structlog.get_logger().info("said", x=1)
    assert lines == [{"event": "said", "x": 1, "log_level": "info"}]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_logging_is_seen_and_put_back(change: Callable[[], object]) -> None:
    before = log_state()
    change()
    assert log_state() != before
    put_back(before)
    assert log_state() == before


def test_cached_loggers_are_not_put_back_in_silence() -> None:
    with pytest.raises(AssertionError, match="cached"), kept_logging():
        structlog.configure(cache_logger_on_first_use=True)
