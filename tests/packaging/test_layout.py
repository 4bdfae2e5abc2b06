"""Imports: what they cost, and that the contracts in pyproject.toml do find what they forbid."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.bus.credentials import new_key, write_key
from tests.servers import PATIENCE_S, ran

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
    "mesh/agent/__init__.py": "import mesh.artifacts, mesh.bus, mesh.model, protocol.wire.ids",
    "mesh/agent/turn.py": "",
    "mesh/artifacts/__init__.py": "import mesh.bus, obstore",
    "mesh/bus/__init__.py": "import nats, nkeys, protocol.wire.ids",
    "mesh/cli/__init__.py": "import click, mesh.ui",
    "mesh/guard/__init__.py": "import mesh.bus, protocol.wire.ids",
    "mesh/mcp/__init__.py": "import mcp",
    "mesh/replay/__init__.py": "",
    "mesh/model/__init__.py": "import mesh.agent",
    "mesh/model/anthropic.py": "import anthropic",
    "mesh/model/openai.py": "import openai",
    "mesh/service/__init__.py": "",
    "mesh/ops/__init__.py": "import mesh.bus",
    "mesh/testing/__init__.py": "import mesh.bus",
    "mesh/ui/__init__.py": "import jinja2, markupsafe, mesh.ops, starlette, uvicorn",
    "protocol/__init__.py": "",
    "protocol/domain/__init__.py": "import protocol.wire.ids",
    "protocol/views/__init__.py": "import protocol.domain",
    "protocol/wire/__init__.py": "",
    "protocol/wire/ids.py": "import hashlib, msgspec",
}
"""The rooms with the imports that each may have."""


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        pytest.param("protocol/wire/ids.py", "import mesh.guard", "layers", id="protocol-reaches-outwards"),
        pytest.param("mesh/bus/__init__.py", "import agents.support", "layers", id="mesh-knows-a-fleet"),
        pytest.param("protocol/wire/ids.py", "import secrets", "pure", id="protocol-makes-randomness"),
        pytest.param("protocol/wire/ids.py", "from time import time", "pure", id="protocol-reads-a-clock"),
        pytest.param("protocol/wire/ids.py", "import logging", "pure", id="protocol-logs"),
        pytest.param(
            "protocol/wire/ids.py", "from os import environ", "pure", id="protocol-reads-the-environment"
        ),
        pytest.param("protocol/wire/ids.py", "from pathlib import Path", "pure", id="protocol-opens-files"),
        pytest.param("protocol/wire/ids.py", "import pydantic", "pure", id="protocol-takes-a-library"),
        pytest.param("protocol/wire/ids.py", "import protocol.domain", "protocol", id="the-wire-decides"),
        pytest.param(
            "protocol/domain/__init__.py", "import protocol.views", "protocol", id="a-verdict-rests-on-a-view"
        ),
        pytest.param(
            "mesh/guard/__init__.py", "import protocol.views", "verdicts", id="a-guard-reads-a-view"
        ),
        pytest.param("mesh/__init__.py", "import tests", "product", id="the-product-needs-its-tests"),
        pytest.param("mesh/guard/__init__.py", "import nats", "bus", id="the-guard-speaks-nats-itself"),
        pytest.param("mesh/guard/__init__.py", "import mesh.agent", "rooms", id="the-guard-runs-an-agent"),
        pytest.param("mesh/guard/__init__.py", "import mesh.model", "guard", id="the-guard-calls-a-model"),
        pytest.param("mesh/guard/__init__.py", "import mesh.mcp", "guard", id="the-guard-calls-tools"),
        pytest.param(
            "mesh/agent/__init__.py", "import obstore", "buckets", id="an-agent-opens-buckets-itself"
        ),
        pytest.param("mesh/agent/__init__.py", "import mcp", "mcp", id="an-agent-speaks-mcp-itself"),
        pytest.param("mesh/agent/turn.py", "import mesh.model", "rooms", id="an-agent-needs-a-model"),
        pytest.param("mesh/agent/__init__.py", "import mesh.guard", "rooms", id="an-agent-holds-the-guard"),
        pytest.param("mesh/agent/__init__.py", "import anthropic", "vendor", id="an-agent-calls-the-vendor"),
        pytest.param("mesh/model/__init__.py", "import anthropic", "vendor", id="another-vendor-is-called"),
        pytest.param("mesh/model/__init__.py", "import openai", "openai", id="the-loop-calls-openai"),
        pytest.param("mesh/ops/__init__.py", "import mesh.cli", "cli", id="an-operators-api-prints"),
        pytest.param("mesh/ops/__init__.py", "import starlette", "page", id="an-operators-api-serves"),
        pytest.param("mesh/ops/__init__.py", "import mesh.ui", "ui", id="an-operators-api-knows-the-page"),
        pytest.param("mesh/ui/__init__.py", "import mesh.cli", "cli", id="the-page-knows-the-command-line"),
        pytest.param("mesh/ops/__init__.py", "import rich", "terminal", id="an-operators-api-draws"),
        pytest.param("mesh/model/__init__.py", "import mesh.cli", "cli", id="a-model-knows-the-command-line"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(tmp_path: Path, file: str, line: str, contract: str) -> None:
    skeleton(tmp_path)
    with (tmp_path / file).open("a") as module:
        module.write(f"{line}\n")
    broken = judged(tmp_path, "--contract", contract)
    assert broken.returncode == 1, broken.stdout
    assert "Broken contracts" in broken.stdout, broken.stdout


def test_what_is_allowed_breaks_no_contract(tmp_path: Path) -> None:
    skeleton(tmp_path)
    as_allowed = judged(tmp_path)
    assert as_allowed.returncode == 0, as_allowed.stdout


def skeleton(folder: Path) -> None:
    """Write the rooms, with the imports that each may have."""
    for name, imports in SKELETON.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{imports}\n")
    shutil.copy(ROOT / "pyproject.toml", folder)


def judged(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Return what import-linter says of `folder`."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache", *options]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
