"""Vendors own what the mesh has to know of them, and nothing else in it names one."""

import re
from itertools import chain

import pytest

from mesh.model import OpenAIModel
from mesh.model.vendors import DEFAULT, VENDORS, WORK, pinned, secrets
from tests.servers import ROOT

NAMED = {
    "mesh/model/vendors/__init__.py": "the vendor of an agent that names none, and its models",
    "mesh/model/__init__.py": "lists the class that an author of agents makes for a server of their own",
    "mesh/adapters/openai_agents.py": "an adapter is named after its SDK, which is an agents' framework",
    "mesh/adapters/_openai_agents.py": "as above",
    "mesh/local/project.py": "`openai-agents` is a package, which has an import name that is ours otherwise",
    "mesh/local/template/README.md": "the starter says how its reader asks a real model",
    "mesh/local/template/pyproject.toml": "and installs that vendor's SDK",
}
"""Files of the product that name a vendor, and why; its own file aside."""


def test_no_other_file_names_a_vendor() -> None:
    own = {ROOT / "mesh/model/vendors" / f"{name}.py" for name in VENDORS}
    names = {name for each in VENDORS.values() for name in (each.vendor, each.sdk)}
    named = re.compile("|".join(names), re.IGNORECASE)
    found = set()
    for file in chain((ROOT / "mesh").rglob("*.*"), (ROOT / "protocol").rglob("*.*")):
        if file in own or "__pycache__" in file.parts or not file.is_file():
            continue
        # `ClaudeAgent` is the name of an agent that any model drives.
        if named.search(file.read_text(errors="replace").replace("ClaudeAgent", "")):
            found.add(str(file.relative_to(ROOT)))
    assert found == set(NAMED)


def test_each_vendor_has_one_file_and_one_stand_in_of_its_name() -> None:
    assert {"claude", "openai"} <= set(VENDORS)
    for name, vendor in VENDORS.items():
        assert vendor.__module__ == f"mesh.model.vendors.{name}"
        assert (ROOT / "tests/vendors" / f"{name}.py").is_file()


def test_every_key_is_kept_from_processes_that_need_none() -> None:
    assert {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY"} == set(secrets())


@pytest.mark.parametrize(
    ("said", "vendor", "model"),
    [
        (WORK, "claude", WORK),
        (f"claude:{WORK}", "claude", WORK),
        ("openai:qwen:7b", "openai", "qwen:7b"),
        ("qwen:7b", DEFAULT.vendor, "qwen:7b"),
        ("openai", DEFAULT.vendor, "openai"),
    ],
)
def test_a_pinned_id_names_its_vendor_or_means_the_default(said: str, vendor: str, model: str) -> None:
    assert pinned(said) == (VENDORS[vendor], model)


def test_a_model_that_an_author_made_is_pinned_as_its_vendor_has_it() -> None:
    assert pinned(OpenAIModel("qwen:7b", api_key="x").pin) == (OpenAIModel, "qwen:7b")
