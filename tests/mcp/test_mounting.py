"""Mounting: which tools there are, what they are called, what they do to the world, what fits them."""

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from mesh.agent import ToolRefused
from mesh.agent.definition import unpacked
from mesh.agent.errors import ToolArgumentsInvalid, ToolsUnusable
from mesh.agent.tools import tool
from mesh.mcp import McpServer, McpUnusable
from mesh.testing import turn
from tests.mcp.conftest import Mount


@pytest.fixture
def mount(mount: Mount, by_http: str) -> Mount:
    """Mount the one server of this module: to start a process for each test would take a second each."""
    return partial(mount, url=by_http)


async def test_each_tool_is_what_the_server_says_it_is(mount: Mount) -> None:
    found = await mount(only=["add"]).tool("add")
    assert (found.name, found.description) == ("add", "Add two numbers.")
    assert found.schema["properties"]["a"]["type"] == "integer"
    assert found.schema["required"] == ["a"]


async def test_the_tools_come_in_order_and_stay_the_same_ones(mount: Mount) -> None:
    server = mount()
    first = await server.tools()
    names = [each.name for each in first]
    assert names == sorted(names)
    assert {"add", "write"} <= set(names)
    await server.close()
    assert await server.tools() is first


async def test_a_prefix_stands_before_every_name_and_what_no_name_may_have_becomes_a_line(
    mount: Mount,
) -> None:
    server = mount(prefix="t_", only=["add", "odd.name"])
    assert [each.name for each in await server.tools()] == ["t_add", "t_odd_name"]
    assert await (await server.tool("t_odd_name")).run({}) == {"result": "odd"}


async def test_a_name_that_becomes_too_long_is_refused(mount: Mount) -> None:
    with pytest.raises(McpUnusable, match="64"):
        await mount(prefix="x" * 63, only=["add"]).tools()


@pytest.mark.parametrize(
    ("effects", "name", "effect"),
    [
        pytest.param({}, "add", None, id="it says that it only reads"),
        pytest.param({}, "write", "once", id="it says nothing"),
        pytest.param({}, "pay", "once", id="it says that it is idempotent"),
        pytest.param({"pay": "idempotent"}, "pay", "idempotent", id="the admin says so"),
        pytest.param({"add": "once"}, "add", "once", id="the admin knows better"),
        pytest.param({"write": None}, "write", None, id="the admin says that it reads"),
    ],
)
async def test_what_a_tool_does_to_the_world(
    mount: Mount, effects: Mapping[str, Any], name: str, effect: str | None
) -> None:
    assert (await mount(effects=effects).tool(name)).effect == effect


async def test_an_approval_is_the_tools(mount: Mount) -> None:
    assert (await mount(approve={"write": "human"}).tool("write")).approve == "human"


async def test_nobody_approves_what_only_reads(mount: Mount) -> None:
    with pytest.raises(McpUnusable, match="add only reads"):
        await mount(approve={"add": "human"}).tools()


@pytest.mark.parametrize("where", ["only", "effects", "approve", "timeouts"])
async def test_a_tool_that_the_server_does_not_have_is_named(mount: Mount, where: str) -> None:
    how = {"only": ["ad"], "effects": {"ad": "once"}, "approve": {"ad": "human"}, "timeouts": {"ad": 1}}
    with pytest.raises(McpUnusable, match="has no tools ad; it has add,"):
        await mount(**{where: how[where]}).tools()


async def test_a_tool_that_is_not_mounted_is_named(mount: Mount) -> None:
    with pytest.raises(McpUnusable, match=r"no tool 'write' mounted; there are: add$"):
        await mount(only=["add"]).tool("write")


async def test_the_key_is_the_runtimes_where_an_effect_is_idempotent(mount: Mount) -> None:
    pay = await mount(effects={"pay": "idempotent"}).tool("pay")
    assert list(pay.schema["properties"]) == ["amount"]
    assert pay.schema["required"] == ["amount"]
    assert await pay.run({"amount": 3}, idempotency_key="k1") == {"result": "k1"}


async def test_without_an_admins_word_a_key_is_an_argument_like_any_other(mount: Mount) -> None:
    pay = await mount().tool("pay")
    assert list(pay.schema["properties"]) == ["amount", "idempotency_key"]
    assert await pay.run({"amount": 3, "idempotency_key": "own"}, idempotency_key="k1") == {"result": "own"}


@pytest.mark.parametrize(
    ("arguments", "mistake"),
    [
        pytest.param({}, "'a' is a required property", id="one is missing"),
        pytest.param({"a": "1"}, r"\$\.a: '1' is not of type 'integer'", id="of another type"),
        pytest.param({"a": 1, "b": 101}, r"\$\.b: 101 is greater than the maximum of 100", id="too large"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(
    mount: Mount, arguments: dict[str, Any], mistake: str
) -> None:
    add = await mount().tool("add")
    with pytest.raises(ToolArgumentsInvalid, match=mistake):
        await add.run(arguments)


async def test_arguments_are_passed_on_as_they_are(mount: Mount) -> None:
    assert (await mount().tool("add")).check({"a": 1}) == {"a": 1}


async def test_what_does_not_match_a_pattern_is_the_servers_no(mount: Mount) -> None:
    spell = await mount().tool("spell")
    assert await turn().call(spell, word="mesh") == {"result": "m-e-s-h"}
    with pytest.raises(ToolRefused, match="pattern") as caught:
        await turn().call(spell, word="MESH")
    assert caught.value.reason == "mcp.refused"
    with pytest.raises(ToolArgumentsInvalid, match="too long"):
        await turn().call(spell, word="handoffs-mesh")


async def test_two_tools_of_an_agent_have_two_names(mount: Mount) -> None:
    @tool
    def add() -> None:
        """Add nothing."""

    with pytest.raises(ToolsUnusable, match="add"):
        await unpacked([add, mount(only=["add"])])
    assert len(await unpacked([add, mount(only=["add"], prefix="t_")])) == 2


@pytest.mark.parametrize(
    ("how", "why"),
    [
        pytest.param({}, "either", id="neither command nor url"),
        pytest.param({"command": ["x"], "url": "y"}, "either", id="both"),
        pytest.param({"command": "x y"}, "as a list", id="a command line"),
        pytest.param({"command": []}, "either", id="no command"),
        pytest.param({"command": ["x"], "only": "add"}, "list of tools", id="one name"),
        pytest.param(
            {"command": ["x"], "effects": {"a": "reconcilable"}}, "effect of a", id="no such effect"
        ),
        pytest.param(
            {"command": ["x"], "approve": {"a": "me"}}, "nobody is called 'me'", id="no such approver"
        ),
        pytest.param({"command": ["x"], "timeouts": {"a": 0}}, "more than 0", id="no time"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        McpServer("things", **how)


def test_nothing_secret_is_shown() -> None:
    server = McpServer("things", url="http://secret.test", headers={"Authorization": "secret"})
    assert repr(server) == "McpServer('things')"


def test_an_agents_module_is_imported_without_the_sdk() -> None:
    code = (
        "import sys\nfrom mesh.mcp import McpServer\nMcpServer('t', command=['x'])\n"
        "print(sorted({'mcp', 'mcp_types', 'httpx2', 'jsonschema', 'pydantic'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
