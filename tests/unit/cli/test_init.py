"""`mesh init` and `mesh completion`, without a mesh."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mesh.cli import app
from mesh.cli.exits import Exit
from mesh.fleet.file import load_fleet
from mesh.local.project import write_starter


def test_a_starter_is_named_after_its_folder_in_every_file(tmp_path: Path) -> None:
    written = write_starter(tmp_path / "Corner Shop")
    assert {str(path.relative_to(tmp_path / "Corner Shop")) for path in written} == {
        ".gitignore",
        "README.md",
        "corner_shop/__init__.py",
        "corner_shop/front.py",
        "corner_shop/orders.py",
        "corner_shop/prompts/front.md",
        "corner_shop/rules.toml",
        "mesh.toml",
        "pyproject.toml",
        "tests/test_fleet.py",
    }
    assert not [path for path in written if "yours" in path.read_text() or "your-fleet" in path.read_text()]
    file = load_fleet(tmp_path / "Corner Shop")
    assert file.name == "corner-shop"
    assert [section.module for section in file.agents.values()] == [
        "corner_shop.front:front",
        "corner_shop.orders:orders",
    ]


def test_a_starter_overwrites_nothing_and_writes_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mesh.toml").write_text("mine")
    done = CliRunner().invoke(app, ["init", str(tmp_path / "shop")])
    assert done.exit_code == Exit.USAGE
    assert "mesh.toml is there already" in done.stderr
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["mesh.toml"]


@pytest.mark.parametrize(
    "name", ["json", "mesh", "agents", "1shop", "class", "ß", "a-name-that-is-far-too-long"]
)
def test_a_folder_that_cannot_name_a_package_is_refused(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / name)])
    assert (done.exit_code, done.stderr.count("\n")) == (Exit.USAGE, 1)
    assert "would name its Python package" in done.stderr
    assert not (tmp_path / name).exists()


def test_the_version_is_the_distributions() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == Exit.DONE
    assert done.stdout.split()[0] == "mesh"
    assert done.stdout.split()[1][0].isdecimal()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_evaluates_completes_the_commands(shell: str) -> None:
    script = CliRunner().invoke(app, ["completion", shell]).stdout
    assert f"_MESH_COMPLETE={shell}_complete" in script
    words = {"COMP_WORDS": "mesh request s", "COMP_CWORD": "s" if shell == "fish" else "2"}
    asked = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['mesh']; from mesh.cli import main; main()"],
        env=os.environ | words | {"_MESH_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "show" in asked
    assert "submit" in asked
