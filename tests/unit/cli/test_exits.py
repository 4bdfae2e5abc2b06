"""How commands end."""

import importlib
import inspect

import click
import pytest
from click.testing import CliRunner

from mesh import errors
from mesh.cli import exits
from mesh.cli.exits import Exit, ReportingGroup, status_of
from mesh.client import SubmitRejected
from protocol.wire.errors import MeshError
from tests.unit.cli.conftest import Mesh


def raising(error: BaseException) -> click.Group:
    app = ReportingGroup()

    @app.command("fail")
    def fail() -> None:
        raise error

    @app.command("other")
    def other() -> None: ...

    return app


@pytest.mark.parametrize(
    ("error", "status"),
    [
        pytest.param(errors.Unreachable("away"), Exit.UNREACHABLE, id="no-bus"),
        pytest.param(errors.AuthenticationFailed("who?"), Exit.UNREACHABLE, id="unknown-credentials"),
        pytest.param(errors.Denied("publish to", "x"), Exit.FAILED, id="not-allowed"),
        pytest.param(SubmitRejected("r", "stale_id", "old"), Exit.REFUSED, id="rejected"),
        pytest.param(TimeoutError("late"), Exit.TIMED_OUT, id="timed-out"),
        pytest.param(KeyboardInterrupt(), Exit.INTERRUPTED, id="interrupted"),
        pytest.param(ExceptionGroup("", [errors.Unreachable("away")]), Exit.UNREACHABLE, id="from-a-task"),
    ],
)
def test_an_error_ends_in_its_status_and_one_line(error: BaseException, status: Exit) -> None:
    result = CliRunner().invoke(raising(error), ["fail"])
    assert result.exit_code == status
    assert "Traceback" not in result.output
    assert len(result.stderr.splitlines()) == (0 if isinstance(error, KeyboardInterrupt) else 1)


def test_the_line_ends_with_the_stable_code() -> None:
    result = CliRunner().invoke(raising(errors.TooLarge(9, 8)), ["fail"])
    assert result.stderr == "mesh: 9 bytes, the bus takes 8 [bus.too_large]\n"


def test_a_bug_is_not_dressed_up() -> None:
    result = CliRunner().invoke(raising(ZeroDivisionError("oops")), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_every_code_that_has_a_status_exists() -> None:
    modules = (
        "mesh.errors",
        "mesh.client",
        "mesh.agent._reply_schema",
        "mesh.settings",
        "mesh.fleet.file",
        "mesh.model.agent",
        "mesh.service.conditions",
        "mesh.service.telemetry",
    )
    codes = {"agent.not_found"}
    for name in modules:
        for found in vars(importlib.import_module(name)).values():
            if inspect.isclass(found) and issubclass(found, MeshError):
                codes.add(found.code)
    assert set(exits._STATUS) <= codes


def test_what_is_not_listed_is_a_failure() -> None:
    assert status_of("log.unreadable") is Exit.FAILED


def test_without_a_bus_a_command_says_that_it_is_unreachable(mesh: Mesh) -> None:
    mesh("setup", "--out", "made", "--file", "mesh.toml")
    result = mesh("send", "hello")
    assert result.exit_code == Exit.USAGE  # nobody said who asks
    assert "MESH_CREDENTIALS" in result.stderr
