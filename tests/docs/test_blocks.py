"""Every block of every page is run or checked by a test; this is where each is."""

import functools
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks
from tests.servers import ROOT

SITE, NODE = "docs/test_site.py", "clients/test_node.py"
OPERATOR = "docs/test_operating_runs.py"
WIRE = "docs/test_wire_pages.py"
"""It fails for a kind of JSON that it does not know."""
PICTURE = "it is a picture made of signs, and nothing can be done with it"
"""The one reason for which a block may do without a test; its language is `text`."""
RUN: dict[str, dict[str, str]] = {
    "CONTRIBUTING.md": {"sh": "docs/test_contributing.py"},
    "README.md": {
        "console": "docs/test_readme.py",  # and packaging/test_wheel.py
        "python title": "docs/test_readme.py",
    },
    "docs/adapters.md": {"python title": "adapters/test_page.py"},
    "agents/README.md": {"console": "system/test_demo_trees.py"},
    "clients/node/README.md": {"console": NODE, "js title": NODE},
    "deploy/README.md": {
        **dict.fromkeys(("sh compose", "sh digests", "sh systemd", "text tls"), "deploy/test_readme.py"),
        "toml scale": "deploy/test_scaling.py",
    },
    "docs/artifacts.md": {
        "console": "system/test_cli_artifacts.py",
        **dict.fromkeys(("python", "toml"), "docs/test_data_page.py"),
    },
    "docs/backup.md": {"console": OPERATOR},
    "docs/design.md": {"text": PICTURE},
    "docs/durable-turns.md": {"python": "docs/test_durable_turns.py"},
    "docs/effects.md": {"python": "docs/test_durable_turns.py"},
    "docs/fleet-file.md": {"toml title": "docs/test_fleet_page.py"},
    "docs/gateway.md": dict.fromkeys(("console", "sh", "json", "python"), "gateway/test_page.py"),
    "docs/keys.md": {
        "console": "deploy/test_keys.py",
        **dict.fromkeys(("toml", "text"), "deploy/test_handover.py"),
    },
    "docs/howto/approval-by-chat.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/howto/chat.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/howto/evals.md": dict.fromkeys(("console", "json *", "toml title"), SITE),
    "docs/howto/fastapi.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/howto/guardrails.md": dict.fromkeys(("python", "toml title"), SITE),
    "docs/howto/handoffs.md": dict.fromkeys(("python", "python title"), SITE),
    "docs/howto/incident.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/howto/own-model.md": dict.fromkeys(("python", "python title"), SITE),
    "docs/howto/schedules.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/howto/shadow.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/index.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/mcp.md": {"python title": "docs/test_mcp_page.py"},
    "docs/memory.md": {
        "console": "system/test_cli_memory.py",
        "python": "docs/test_data_page.py",
    },
    "docs/metrics.md": {"console": OPERATOR},
    "docs/models.md": {
        "console": "live/test_prompt.py",
        **dict.fromkeys(
            (
                *("markdown title", "python title", "python own-server", "python follow"),
                *("toml fleet", "toml title"),
            ),
            "docs/test_models_page.py",
        ),
    },
    "docs/operations.md": dict.fromkeys(("console", "text"), OPERATOR),
    "docs/many.md": {"console": OPERATOR},
    "docs/people.md": dict.fromkeys(("console", "toml"), OPERATOR),
    "docs/python.md": dict.fromkeys(
        ("python check", "python title", "python wrong", "text mypy"), "docs/test_python_page.py"
    ),
    "docs/replay.md": {"console": OPERATOR},
    "docs/reference/model-turns.md": {"text brief": "docs/test_models_page.py"},
    "docs/running.md": {
        **dict.fromkeys(("console", "python title", "text title", "toml title"), SITE),
        "text": "system/test_dev_reload.py",
    },
    "docs/swarm.md": dict.fromkeys(("python check", "python title", "toml"), "docs/test_teams_page.py"),
    "docs/teams.md": dict.fromkeys(("python check", "python title", "toml"), "docs/test_teams_page.py"),
    "docs/telemetry.md": {
        "console": "telemetry/test_processes.py",
        "sh": "docs/test_commands.py",
        "text": PICTURE,
        "yaml": "docs/test_commands.py",
    },
    "docs/testing.md": dict.fromkeys(("python", "python title"), "docs/test_testing_page.py"),
    "docs/troubleshooting.md": {"console": OPERATOR},
    "docs/tutorial.md": dict.fromkeys(("console", "python title", "toml title"), SITE),
    "docs/web-ui.md": {"console": "system/test_cli_ui.py"},
    "docs/wire/agent.md": {"js": "clients/test_page.py", "json *": WIRE},
    "docs/wire/client.md": {
        "js": "clients/test_page.py",
        "json *": WIRE,
        "text": PICTURE,
        "text headers": "guard/test_client_reading.py",
    },
    "docs/wire/reference.md": {"json *": WIRE, "python chain": "docs/test_wire_chain.py"},
    "mesh/local/template/README.md": {"console": "packaging/test_wheel.py"},
    "tests/drill/README.md": dict.fromkeys(("console", "python"), "docs/test_drill_page.py"),
}
"""By page and kind of block (a title's name left out): the test that runs or checks each of that kind."""


@functools.cache
def _kinds() -> dict[str, dict[str, list[Block]]]:
    """Return the blocks of all pages that are in the repository, by page and kind."""
    tops = [path for path in ROOT.iterdir() if path.name not in ("build", "dist") and path.name[0] != "."]
    pages = [*ROOT.glob("*.md"), *(page for top in tops if top.is_dir() for page in top.rglob("*.md"))]
    found: dict[str, dict[str, list[Block]]] = {}
    for page in pages:
        if "node_modules" not in page.parts:
            for block in blocks(page.read_text()):
                of_page = found.setdefault(str(page.relative_to(ROOT)), {})
                of_page.setdefault(_kind(block), []).append(block)
    return found


def _kind(block: Block) -> str:
    kind = f"{block.language} {block.kind.partition('=')[0]}".strip()
    return "json *" if block.language == "json" and block.kind else kind


def test_every_block_is_run_and_nothing_else_is_said_to_be() -> None:
    assert {page: set(kinds) for page, kinds in _kinds().items()} == {
        page: set(kinds) for page, kinds in RUN.items()
    }


@pytest.mark.parametrize("page", RUN)
def test_a_page_is_read_by_the_tests_that_run_it(page: str) -> None:
    for kind, test in RUN[page].items():
        if test != PICTURE:
            text = (ROOT / "tests" / test).read_text()
            assert "def test_" in text
            named = Path(page).name if page.startswith("docs/") else Path(page).stem
            assert named.removeprefix("howto/") in text or named in _names_in_imports(text), (kind, test)


def _names_in_imports(text: str) -> str:
    """Return the text of the test modules of `tests/docs` that a test module imports."""
    return "".join(
        path.read_text()
        for path in (ROOT / "tests" / "docs").glob("test_*.py")
        if f"tests.docs.{path.stem}" in text
    )


def test_a_picture_holds_no_command_and_no_code() -> None:
    pictures = [
        block
        for page, kinds in RUN.items()
        for kind, test in kinds.items()
        for block in _kinds()[page][kind]
        if test == PICTURE
    ]
    assert len(pictures) == 3
    for block in pictures:
        assert block.language == "text"
        assert any(sign in block.text for sign in "▶└"), block
        assert "$ " not in block.text
