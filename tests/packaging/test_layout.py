"""Imports: what they cost, and that the contracts in pyproject.toml do find what they forbid."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from mesh.bus.credentials import new_key, write_key
from tests.servers import ran

ROOT = Path(__file__).parents[2]
HEAVY = {"anthropic", "nats", "nkeys", "openai", "pydantic"}

HELP = """
import contextlib, io, sys
sys.argv = ["mesh", "--help"]
from mesh.cli import main
said = io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
    main()
"""


def loaded(code: str) -> set[str]:
    """Return the top-level modules that are loaded in a fresh interpreter after `code`."""
    report = "\nimport json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    finished = ran("-c", code + report)
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout))


def test_help_loads_neither_the_bus_nor_a_model() -> None:
    modules = loaded(HELP + "assert 'demo' in said.getvalue(), said.getvalue()")
    assert "click" in modules  # it did run
    assert not modules & HEAVY


def test_importing_mesh_loads_neither_the_bus_nor_a_model() -> None:
    assert not loaded("import mesh") & HEAVY


CLIENT = """
import mesh.cli.send, mesh.cli.request, mesh.ops.explain, mesh.client.follow
from mesh.agent import Turn, agent, tool
"""


def test_a_client_and_an_agents_file_load_no_reader_of_types_no_model_and_no_thread() -> None:
    modules = loaded(CLIENT + "import sys; assert 'mesh.sync' not in sys.modules")
    assert "nats" in modules
    assert not modules & {"anthropic", "jsonschema", "obstore", "openai", "pydantic", "starlette"}


SERVING = """
import os, sys
from mesh.service import run
run.collect_rarely = lambda: sys.exit(3)  # everything is imported
os.environ |= {{"MESH_NAME": {name!r}, "MESH_CREDENTIALS": {key!r}}}
sys.argv = ["mesh", *{arguments!r}]
from mesh.cli import main
try:
    main()
except SystemExit as ended:
    assert ended.code == 3, ended
"""


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("greeter", ["agent", "run", "tests.system.desk:greeter"]), ("guard", ["guard", "run"])],
)
def test_a_service_without_a_model_loads_nothing_of_models_and_nothing_that_draws(
    name: str, arguments: list[str], tmp_path: Path
) -> None:
    key = str(write_key(tmp_path, name, new_key()))
    modules = loaded(SERVING.format(name=name, key=key, arguments=arguments))
    assert {"nats", "structlog"} <= modules
    assert not modules & {"anthropic", "jsonschema", "pydantic", "rich"}


def test_protocol_loads_nothing_but_the_standard_library_and_msgspec() -> None:
    files = sorted(file.relative_to(ROOT) for file in (ROOT / "protocol").rglob("*.py"))
    modules = [".".join(file.with_suffix("").parts) for file in files if file.stem != "__init__"]
    assert "protocol.wire.codec" in modules
    pure = loaded("\n".join(f"import {module}" for module in modules)) - loaded("import msgspec")
    assert {module for module in pure if module not in sys.stdlib_module_names} == {"protocol"}


SKELETON = {
    "agents/support.py": "import mesh",
    "mesh/__init__.py": "import mesh.agent",
    "mesh/adapters/__init__.py": "import langchain_core, langgraph, mesh.model, pydantic_ai",
    "mesh/agent/__init__.py": "import mesh.artifacts, mesh.bus, mesh.model, protocol.wire.ids",
    "mesh/agent/turn.py": "",
    "mesh/artifacts/__init__.py": "import mesh.bus, obstore",
    "mesh/bus/__init__.py": "import nats, nkeys, protocol.wire.ids",
    "mesh/cli/__init__.py": "import click, mesh.ui",
    "mesh/gateway/__init__.py": "import a2a, mesh.ops, mesh.web, starlette",
    "mesh/guard/__init__.py": "import mesh.bus, protocol.wire.ids",
    "mesh/mcp/__init__.py": "import mcp",
    "mesh/replay/__init__.py": "",
    "mesh/model/__init__.py": "import mesh.agent",
    "mesh/model/vendors/__init__.py": "",
    "mesh/model/vendors/claude.py": "import anthropic",
    "mesh/model/vendors/openai.py": "import openai",
    "mesh/service/__init__.py": "",
    "mesh/telemetry/__init__.py": "",
    "mesh/ops/__init__.py": "import mesh.bus",
    "mesh/testing/__init__.py": "import mesh.bus",
    "mesh/ui/__init__.py": "import jinja2, markupsafe, mesh.ops, mesh.web, starlette",
    "mesh/web/__init__.py": "import mesh.errors, starlette, uvicorn",
    "mesh/errors.py": "",
    "protocol/__init__.py": "",
    "protocol/domain/__init__.py": "import protocol.wire.ids",
    "protocol/views/__init__.py": "import protocol.domain",
    "protocol/wire/__init__.py": "",
    "protocol/wire/ids.py": "import hashlib, msgspec",
}
"""The rooms with the imports that each may have."""
SKELETON |= {f"mesh/agent/{file.name}": "" for file in ROOT.glob("mesh/agent/*[!_].py")}


BREAKS = {
    "protocol-reaches-outwards": ("protocol/wire/ids.py", "import mesh.guard", "layers"),
    "mesh-knows-a-fleet": ("mesh/bus/__init__.py", "import agents.support", "layers"),
    "protocol-makes-randomness": ("protocol/wire/ids.py", "import secrets", "pure"),
    "protocol-reads-a-clock": ("protocol/wire/ids.py", "from time import time", "pure"),
    "protocol-logs": ("protocol/wire/ids.py", "import logging", "pure"),
    "protocol-reads-the-environment": ("protocol/wire/ids.py", "from os import environ", "pure"),
    "protocol-opens-files": ("protocol/wire/ids.py", "from pathlib import Path", "pure"),
    "protocol-takes-a-library": ("protocol/wire/ids.py", "import pydantic", "pure"),
    "the-wire-decides": ("protocol/wire/ids.py", "import protocol.domain", "protocol"),
    "a-verdict-rests-on-a-view": ("protocol/domain/__init__.py", "import protocol.views", "protocol"),
    "a-guard-reads-a-view": ("mesh/guard/__init__.py", "import protocol.views", "verdicts"),
    "the-product-needs-its-tests": ("mesh/__init__.py", "import tests", "product"),
    "the-guard-speaks-nats-itself": ("mesh/guard/__init__.py", "import nats", "bus"),
    "the-guard-runs-an-agent": ("mesh/guard/__init__.py", "import mesh.agent", "rooms"),
    "the-guard-calls-a-model": ("mesh/guard/__init__.py", "import mesh.model", "guard"),
    "the-guard-calls-tools": ("mesh/guard/__init__.py", "import mesh.mcp", "guard"),
    "an-agent-opens-buckets-itself": ("mesh/agent/__init__.py", "import obstore", "buckets"),
    "an-agent-speaks-mcp-itself": ("mesh/agent/__init__.py", "import mcp", "mcp"),
    "the-page-speaks-a2a": ("mesh/ui/__init__.py", "import a2a", "a2a"),
    "a-journal-knows-its-round": ("mesh/agent/_journal.py", "import mesh.agent._execution", "runtime"),
    "a-span-knows-its-agent": ("mesh/agent/_telemetry.py", "import mesh.agent.definition", "runtime"),
    "an-agent-needs-a-model": ("mesh/agent/turn.py", "import mesh.model", "rooms"),
    "an-agent-holds-the-guard": ("mesh/agent/__init__.py", "import mesh.guard", "rooms"),
    "an-agent-calls-the-vendor": ("mesh/agent/__init__.py", "import anthropic", "vendors"),
    "another-vendor-is-called": ("mesh/model/__init__.py", "import anthropic", "vendors"),
    "the-loop-calls-openai": ("mesh/model/__init__.py", "import openai", "vendors"),
    "the-loop-knows-another-sdk": ("mesh/model/__init__.py", "import pydantic_ai", "adapters"),
    "a-model-needs-an-adapter": ("mesh/model/__init__.py", "import mesh.adapters", "rooms"),
    "an-operators-api-prints": ("mesh/ops/__init__.py", "import mesh.cli", "cli"),
    "an-operators-api-serves": ("mesh/ops/__init__.py", "import starlette", "page"),
    "an-operators-api-knows-the-page": ("mesh/ops/__init__.py", "import mesh.ui", "ui"),
    "the-gateway-knows-the-page": ("mesh/gateway/__init__.py", "import mesh.ui", "ui"),
    "the-page-knows-the-command-line": ("mesh/ui/__init__.py", "import mesh.cli", "cli"),
    "an-operators-api-draws": ("mesh/ops/__init__.py", "import rich", "terminal"),
    "a-model-knows-the-command-line": ("mesh/model/__init__.py", "import mesh.cli", "cli"),
}
"""An import that is forbidden, by what it means: its file, its line and the contract that it breaks."""

JUDGE = """
import contextlib, io, json, os, sys
from importlinter.cli import lint_imports
judged = {}
for folder, contracts in json.loads(sys.argv[1]):
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = lint_imports(limit_to_contracts=tuple(contracts), no_cache=True, no_logo=True)
    judged[os.path.basename(folder)] = code, said.getvalue()
print(json.dumps(judged))
"""
AS_ALLOWED = "as-allowed"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What import-linter returns for each skeleton, and what it prints; one process judges them all."""
    folder = tmp_path_factory.mktemp("skeletons")
    skeleton(folder / AS_ALLOWED)
    asked: list[tuple[str, tuple[str, ...]]] = [(str(folder / AS_ALLOWED), ())]
    for name, (file, line, contract) in BREAKS.items():
        skeleton(folder / name)
        with (folder / name / file).open("a") as module:
            module.write(f"{line}\n")
        asked.append((str(folder / name), (contract,)))
    finished = ran("-c", JUDGE, json.dumps(asked))
    assert finished.returncode == 0, finished.stderr
    found: dict[str, tuple[int, str]] = json.loads(finished.stdout)
    return found


@pytest.mark.parametrize("name", BREAKS)
def test_a_forbidden_import_breaks_its_contract(name: str, judged: dict[str, tuple[int, str]]) -> None:
    code, said = judged[name]
    assert code == 1, said
    assert "Broken contracts" in said, said


def test_what_is_allowed_breaks_no_contract(judged: dict[str, tuple[int, str]]) -> None:
    code, said = judged[AS_ALLOWED]
    assert code == 0, said


def skeleton(folder: Path) -> None:
    """Write the rooms, with the imports that each may have."""
    for name, imports in SKELETON.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{imports}\n")
    shutil.copy(ROOT / "pyproject.toml", folder)
