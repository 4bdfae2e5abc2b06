"""What every command says of itself, and what saying it costs."""

import ast
import importlib
import inspect
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mesh import errors
from mesh.bus.credentials import new_key, write_key
from mesh.cli import COMMANDS, app, exits
from mesh.cli.exits import EPILOG, Exit, ReportingGroup, status_of
from mesh.client import SubmitRejected
from protocol.wire.errors import MeshError
from tests.servers import ROOT, ran
from tests.system.terminal import commands_of
from tests.unit.cli.conftest import STORY, Mesh

HEAVY = {"anthropic", "asyncio", "msgspec", "nats", "nkeys", "pydantic", "rich", "structlog"}


def paths(group: click.Command | None = None, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return every command, as its words."""
    found: list[tuple[str, ...]] = []
    for name, command in commands_of(group or app).items():
        here = (*before, name)
        found += paths(command, here) if isinstance(command, click.Group) else [here]
    return found


LOADING = """
import sys
sys.argv = ["mesh", *{arguments!r}]
from mesh.cli import main
try:
    main()
except SystemExit as end:
    print("ENDED", end.code)
print("LOADED", *sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def loaded_by(arguments: list[str], status: Exit, folder: Path = ROOT) -> tuple[set[str], str]:
    """Give a command in a process of its own; return the packages that it loaded, and what it said."""
    ended = ran("-c", LOADING.format(arguments=arguments), folder=folder)
    assert f"ENDED {int(status)}" in ended.stdout, ended
    said, _, loaded = ended.stdout.rpartition("LOADED")
    return set(loaded.split()), said


def test_the_list_of_commands_imports_none_of_them() -> None:
    loaded, said = loaded_by(["--help"], Exit.DONE)
    assert "Usage: mesh" in said
    assert "click" in loaded
    assert not loaded & HEAVY


def test_the_list_says_of_each_command_what_its_own_help_says(mesh: Mesh) -> None:
    for name, command in commands_of(app).items():
        assert command.help is not None
        assert " ".join(command.help.partition("\n\n")[0].split()) == COMMANDS[name].help


@pytest.mark.parametrize("noun", ["request", "human", "doubt", "dead", "log", "memory"])
def test_help_of_a_noun_loads_what_its_commands_share_and_nothing_else(noun: str) -> None:
    loaded, said = loaded_by([noun, "--help"], Exit.DONE)
    assert f"Usage: mesh {noun}" in said
    assert not loaded & {*UNUSED, "sqlite3"}


WITHIN = {
    "asyncio",  # by `mesh --help`
    "importlib.metadata",  # services say their version
    "mesh.agent._reply_schema",  # JSON Schema, once somebody replies
    "mesh.cli",  # completion lists all commands
    "mesh.client",  # which readers have no use for
    "mesh.fleet.file",  # pydantic: an agent that runs has no use for it, nor has a command of operators
    "mesh.fleet.setup",
    "mesh.fleet.bundle",
    "mesh.fleet.handover",
    "mesh.gateway.server",  # the extra `ui`
    "mesh.local.project",
    "mesh.model.transcript",  # it loads what models need
    "mesh.model.choice",  # an agent without a model loads nothing of models
    "mesh.service.run",  # services log
    "mesh.telemetry",  # OpenTelemetry, once services measure
    "mesh.telemetry.export",
    "mesh.ui.drawing.scene",  # the extra `ui`
    "mesh.ui.replayed",
    "mesh.ui.story",
    "msgspec",  # `mesh --help` writes no JSON
    "rich",  # a terminal's tables
}
"""What a command imports within its body, and why it is not on top."""


def test_imports_stand_on_top_of_a_nouns_file() -> None:
    for path in sorted((ROOT / "mesh" / "cli").glob("*.py")):
        tree = ast.parse(path.read_text())
        bodies = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for node in {each for body in bodies for each in ast.walk(body)}:
            if isinstance(node, ast.Import | ast.ImportFrom):
                name = node.names[0].name if isinstance(node, ast.Import) else str(node.module)
                assert WITHIN & {name, name.partition(".")[0]}, f"{path.name}: {name} in a function"


UNUSED = {
    "anthropic",
    "jinja2",
    "jsonschema",
    "mcp",
    "opentelemetry",
    "pydantic",
    "rich",
    "starlette",
    "structlog",
}
"""What a command that asks the bus for something, or reads a file, has no use for."""
NOWHERE = "nats://127.0.0.1:1"
A_REQUEST = "c1_01HF7YAT00040G2081040G2081"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        pytest.param(["send", "hello", "--url", NOWHERE], Exit.UNREACHABLE, id="send"),
        pytest.param(["request", "show", A_REQUEST, "--url", NOWHERE], Exit.UNREACHABLE, id="request show"),
        pytest.param(["request", "ls", "--url", NOWHERE], Exit.UNREACHABLE, id="request ls"),
        pytest.param(["why", A_REQUEST, "--url", NOWHERE], Exit.UNREACHABLE, id="why"),
        pytest.param(["request", "show", str(STORY)], Exit.DONE, id="request show FILE"),
        pytest.param(["why", str(STORY)], Exit.DONE, id="why FILE"),
    ],
)
def test_a_command_loads_what_it_uses_and_nothing_else(
    arguments: list[str], status: Exit, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_CREDENTIALS", str(write_key(here, "app", new_key())))
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    loaded, _ = loaded_by(arguments, status, here)
    assert {"click", "msgspec", "nats"} <= loaded
    assert not loaded & UNUSED


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_every_command_explains_itself(mesh: Mesh, path: tuple[str, ...]) -> None:
    result = mesh(*path, "--help")
    assert result.exit_code == Exit.DONE
    assert f"Usage: mesh {' '.join(path)}" in result.output.replace("root", "mesh")
    assert len(result.output.splitlines()) > 4


SERVICES = {
    ("chat",): "it goes on until the input ends; programs take mesh.Client",
    ("completion",): "its output is a script for a shell",
    ("dev",): "it goes on until Ctrl-C; .mesh/dev.json tells programs of it",
    ("agent", "run"): "a service: its logs are JSON by MESH_LOG_FORMAT",
    ("gateway", "run"): "a service: its logs are JSON by MESH_LOG_FORMAT",
    ("guard", "run"): "a service: its logs are JSON by MESH_LOG_FORMAT",
    ("ui",): "it goes on until Ctrl-C",
}
"""Commands without the option, and why."""


def options_of(path: tuple[str, ...]) -> set[str]:
    command: click.Command = app
    for word in path:
        command = commands_of(command)[word]
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("path", paths(), ids=" ".join)
def test_every_command_that_ends_has_a_form_for_programs(path: tuple[str, ...]) -> None:
    assert ("--json" in options_of(path)) is (path not in SERVICES)


@pytest.mark.parametrize("path", [path for path in paths() if path not in SERVICES], ids=" ".join)
def test_the_form_is_chosen_the_same_way_everywhere(path: tuple[str, ...]) -> None:
    command: click.Command = app
    for word in path:
        command = commands_of(command)[word]
    [form] = [each for each in command.params if "-o" in each.opts]
    assert form.opts == ["-o", "--output"]
    assert isinstance(form.type, click.Choice)
    assert tuple(form.type.choices)[:2] == ("table", "json")


def test_the_documented_exit_statuses_are_all_there_are(mesh: Mesh) -> None:
    for status in Exit:
        assert f"{status.value} " in EPILOG
    said = " ".join(mesh("--help").output.split())
    assert EPILOG in said


@pytest.mark.parametrize("noun", ["request", "human", "doubt", "log", "dead", "agent", "guard", "schema"])
def test_a_noun_alone_lists_its_verbs(mesh: Mesh, noun: str) -> None:
    assert "Commands:" in mesh(noun).output


def test_an_unknown_command_is_a_matter_of_usage(mesh: Mesh) -> None:
    assert mesh("requests").exit_code == Exit.USAGE
    assert mesh("send").exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (("requests",), "request"),
        (("human", "lst"), "ls"),
        (("request", "shwo"), "show"),
        (("dotcor",), "doctor"),
    ],
)
def test_the_command_that_is_near_is_suggested(mesh: Mesh, said: tuple[str, ...], meant: str) -> None:
    suggested = mesh(*said).stderr.partition("Did you mean")[2]
    assert f"'{meant}'" in suggested


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
        "mesh.model.choice",
        "mesh.service.conditions",
        "mesh.telemetry.export",
        "mesh.ui",
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
