"""`mesh setup --out` and `mesh agent add`: files, without a bus."""

from pathlib import Path

import pytest

from mesh.bus.credentials import new_key, write_key
from mesh.cli.arguments import parse_artifacts, parse_budget, parse_facts, seconds_in
from mesh.cli.exits import Exit
from mesh.errors import UsageWrong
from mesh.fleet.file import load_fleet
from protocol.wire.handoff import Artifact, Budget
from tests.unit.cli.conftest import Mesh

FLEET = """\
# Who works here.
name = "desk"
entry = "front"

[agents.front]   # sees everybody first
to = ["greeter"]

[agents.greeter]

# Whoever asks.
[clients.app]
[operators.ops]
[viewers.audit]
[human]
"""


@pytest.fixture
def file(here: Path) -> Path:
    path = here / "mesh.toml"
    path.write_text(FLEET)
    return path


def test_setup_writes_a_key_for_everybody_and_the_accounts(mesh: Mesh, file: Path) -> None:
    result = mesh("setup", "--out", "made")
    assert result.exit_code == Exit.DONE, result.output
    made = file.parent / "made"
    names = {path.stem for path in (made / "keys").iterdir()}
    assert names == {"admin", "guard", "front", "greeter", "app", "ops", "audit"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (made / "keys").iterdir())
    accounts = (made / "accounts.conf").read_text()
    assert "accounts {" in accounts
    public = {path.stem: path.read_text().strip() for path in (made / "keys").glob("*.pub")}
    assert set(public) == names
    assert all(f"nkey: {key}" in accounts for key in public.values())


def test_setup_a_second_time_changes_nothing(mesh: Mesh, file: Path) -> None:
    mesh("setup", "--out", "made")
    before = {path: path.read_bytes() for path in (file.parent / "made").rglob("*") if path.is_file()}
    result = mesh("setup", "--out", "made")
    assert result.exit_code == Exit.DONE
    assert result.stdout == ""
    assert {path: path.read_bytes() for path in before} == before


def test_a_dry_run_writes_nothing(mesh: Mesh, file: Path) -> None:
    result = mesh("setup", "--out", "made", "--dry-run")
    assert "create made/keys/front.nk" in result.stdout
    assert not (file.parent / "made").exists()


def test_setup_goes_on_without_the_bus_that_is_named(
    mesh: Mesh, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    result = mesh("setup", "--out", "made")
    assert result.exit_code == Exit.DONE
    assert "nothing was applied" in result.stderr
    monkeypatch.setenv("MESH_CREDENTIALS", str(file.parent / "made" / "keys" / "admin.nk"))
    assert mesh("setup").exit_code == Exit.UNREACHABLE


def test_without_a_fleet_file_setup_is_a_matter_of_usage(mesh: Mesh) -> None:
    assert mesh("setup", "--out", "made").exit_code == Exit.USAGE


def test_an_agent_is_added_and_the_file_keeps_its_comments(mesh: Mesh, file: Path) -> None:
    added = mesh(
        *(
            "agent",
            "add",
            "returns",
            "--module",
            "desk:returns",
            "--to",
            "front",
            "--description",
            'the "R" team',
        )
    )
    assert added.exit_code == Exit.DONE, added.output
    text = file.read_text()
    section = '[agents.returns]\nmodule = "desk:returns"\ndescription = "the \\"R\\" team"\nto = ["front"]\n'
    assert text == f"{FLEET}\n{section}"
    assert load_fleet(file).agents["returns"].to == ("front",)
    assert (file.parent / ".mesh" / "keys" / "returns.nk").is_file()
    assert "mesh setup" in added.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["front"], id="there-already"),
        pytest.param(["app"], id="a-client"),
        pytest.param(["guard"], id="the-guard"),
        pytest.param(["human"], id="people"),
        pytest.param(["Big Name"], id="no-name"),
        pytest.param(["returns", "--to", "nobody"], id="hands-to-nobody"),
    ],
)
def test_an_agent_that_cannot_be_leaves_the_file_alone(mesh: Mesh, file: Path, arguments: list[str]) -> None:
    assert mesh("agent", "add", *arguments).exit_code == Exit.USAGE
    assert file.read_text() == FLEET


def test_the_schemas_are_written(mesh: Mesh, here: Path) -> None:
    said = mesh("schema", "export", "--out", "s").stdout.split()
    assert said
    assert all((here / path).is_file() for path in said)


DESK = """
from mesh.agent import agent


@agent(name="front", prompt_version="1")
async def {module}_front(turn):
    return turn.complete("done")


@agent(name="back")
async def back(turn):
    return turn.complete("done")
"""


def has_module(here: Path, name: str, text: str = DESK) -> None:
    (here / f"{name}.py").write_text(text.replace("{module}", name))


@pytest.mark.parametrize(
    ("name", "attribute", "said"),
    [
        pytest.param("desk_a", "", "desk_a: say which agent", id="none"),
        pytest.param("desk_b", ":agent", "desk_b: say which agent", id="the-decorator"),
        pytest.param("desk_c", ":nobody", "desk_c has no 'nobody'; say which agent", id="nobody"),
    ],
)
def test_a_reference_to_no_agent_is_told_which_there_are(
    here: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch, name: str, attribute: str, said: str
) -> None:
    monkeypatch.syspath_prepend(str(here))
    has_module(here, name)
    done = mesh("agent", "run", f"{name}{attribute}")
    expected = f"mesh: {said}, MODULE:NAME: {name}:{name}_front, {name}:back [agent.not_found]\n"
    assert (done.exit_code, done.stderr) == (Exit.USAGE, expected)


def test_a_module_without_an_agent_is_said_to_have_none(
    here: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    has_module(here, "desk_d", "from mesh.agent import agent\n")
    done = mesh("agent", "run", "desk_d")
    assert (done.exit_code, done.stderr) == (
        Exit.USAGE,
        "mesh: desk_d: there is no agent in it [agent.not_found]\n",
    )


@pytest.mark.parametrize("model", ["bogus", "stub"])
def test_a_model_that_there_is_not_is_a_matter_of_usage(
    here: Path, mesh: Mesh, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.syspath_prepend(str(here))
    has_module(here, "desk_e")
    monkeypatch.setenv("MESH_CREDENTIALS", str(write_key(here, "front", new_key())))
    monkeypatch.setenv("MESH_MODEL", model)
    monkeypatch.delenv("MESH_STUB_URL", raising=False)
    done = mesh("agent", "run", "desk_e:desk_e_front")
    assert done.exit_code == Exit.USAGE
    assert f"mesh: MESH_MODEL={model}: " in done.stderr


def test_a_budget_is_counted_in_whole_units() -> None:
    assert parse_budget([]) is None
    assert parse_budget(["dollars=0.50", "tokens=20000", "model_calls=0"]) == Budget(
        nano_dollars=500_000_000, tokens=20_000, model_calls=0
    )
    assert parse_budget(["dollars=0.000000001"]) == Budget(nano_dollars=1)


@pytest.mark.parametrize(
    "said",
    [
        *("5", "euros=5", "dollars=", "dollars=-1", "dollars=0.0000000001"),
        *("tokens=1.5", "tokens=nan", "tokens=inf", "tokens=1e999999", "tokens=4611686018427387905"),
    ],
)
def test_what_is_no_budget_is_wrong_usage(said: str) -> None:
    with pytest.raises(UsageWrong, match=r"budget|amount"):
        parse_budget([said])


def test_one_kind_of_budget_is_said_once() -> None:
    with pytest.raises(UsageWrong, match="two budgets of tokens"):
        parse_budget(["tokens=1", "tokens=2"])


def test_an_artifact_is_a_name_and_where_it_lies() -> None:
    assert parse_artifacts(["scan=s3://b/x?y=1"]) == (Artifact(name="scan", uri="s3://b/x?y=1"),)
    for wrong in (["scan"], ["=x"], ["scan="], ["a=1", "a=2"]):
        with pytest.raises(UsageWrong, match="artifact"):
            parse_artifacts(wrong)


def test_a_span_is_seconds() -> None:
    assert [seconds_in(each) for each in ("90s", "10m", "2h", "1d")] == [90, 600, 7200, 86_400]
    for wrong in ("0s", "10", "2026-11-21", "-1s", "1.5h"):
        with pytest.raises(UsageWrong, match="span"):
            seconds_in(wrong)


def test_facts_are_text_unless_marked_as_json() -> None:
    given = parse_facts(["name=Ada=Eve", "n:=3", "list:=[1]", "empty="])
    assert {fact.key: fact.value for fact in given} == {"name": "Ada=Eve", "n": 3, "list": [1], "empty": ""}
    assert parse_facts([]) == ()


@pytest.mark.parametrize("wrong", [["name"], ["=x"], [":=1"], ["n:=three"], ["a=1", "a=2"]])
def test_a_wrong_fact_is_a_matter_of_usage(wrong: list[str]) -> None:
    with pytest.raises(UsageWrong):
        parse_facts(wrong)
