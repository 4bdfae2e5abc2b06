"""docs/models.md, reference/model-turns.md, howto/own-model.md: examples run, numbers are the code's."""

import http.server
import json
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mesh.agent import Retry, Turn, _execution, _telemetry, agent, tool
from mesh.agent import _rate_limit as rate_limit
from mesh.agent._execution import MAX_RESULT_BYTES
from mesh.fleet.file import parse_fleet
from mesh.fleet.setup import prices_of
from mesh.model import ClaudeAgent
from mesh.model.choice import MODES
from mesh.model.loop import CUT, FATAL, MAX_CALLS, PAUSED
from mesh.model.prompt import Instructions, PromptContext, render
from mesh.ops.spending import Row
from mesh.testing import LocalMesh, turn
from protocol.wire.config import AgentEntry
from protocol.wire.handoff import Constraints
from protocol.wire.ids import AgentName
from protocol.wire.moves import Complete, Move
from protocol.wire.prices import assumed_cache_prices, price_list
from tests.docs.pages import blocks, codes, read, section, table, tables, written
from tests.servers import ran

PAGE = read("models.md") + read("reference/model-turns.md")
BLOCKS = list(blocks(PAGE))
(OLLAMA,) = (block for block in blocks(read("howto/own-model.md")) if block.kind == 'title="ollama.py"')
FLEET = 'name = "f"\nentry = "a"\n[agents.a]\n'


def test_the_example_runs(tmp_path: Path) -> None:
    assert written(BLOCKS, tmp_path) == ["librarian.md", "librarian.py", "rules.toml"]
    done = ran(tmp_path / "librarian.py", MESH_MODEL="scripted")
    assert done.returncode == 0, done.stderr
    assert "On Handoffs, on shelf 7" in done.stdout


def test_the_brief_is_as_the_page_shows_it() -> None:
    (shown,) = (block.text for block in BLOCKS if block.kind == "brief")
    given = turn(
        agent="librarian",
        summary="the paper on handoffs",
        from_agent="front",
        move="transfer",
        path=["front", "librarian"],
        facts={"reader": {"id": 7}, "urgent": True},
        constraints=Constraints(deadline=1_795_000_000_000_000, allowed_actions=("find_paper",)),
    )
    archivist = AgentEntry(name=AgentName("archivist"), description="Keeps what is old", intents=("fetch",))
    seen = PromptContext(peers=(archivist,), human=True, tools=())
    assert render(given, seen) == shown


async def test_the_example_of_following_runs(tmp_path: Path) -> None:
    (shown,) = (block.text for block in BLOCKS if block.kind == "follow")
    names: dict[str, Any] = {}
    exec(compile(shown, "models.md", "exec"), names)

    @agent(name="librarian")
    async def librarian(turn: Turn) -> Move:
        return turn.complete("here")

    async with LocalMesh([librarian], tmp_path) as mesh:
        assert await names["watch"](await mesh.client()) == "here"


def test_another_server_is_named_as_the_page_does() -> None:
    (shown,) = (block.text for block in BLOCKS if block.kind == "own-server")
    names: dict[str, Any] = {}
    exec(compile(shown, "models.md", "exec"), names)
    assert names["clerk"].model == "openai:qwen3"
    assert not names["clerk"].own_model  # it is a vendor's API, which is asked only on request


class Served(http.server.BaseHTTPRequestHandler):
    """Ollama's API: a call first, then the answer, made of the call's result."""

    asked: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(wanted)
        last = wanted["messages"][-1]
        calls = [{"function": {"name": "look_up", "arguments": {"name": "Ada"}}}]
        message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
        if last["role"] == "tool":
            message = {"role": "assistant", "content": f"It is {last['content']}."}
        body = json.dumps({"message": message, "prompt_eval_count": 7, "eval_count": 3}).encode()
        self.send_response(503 if "busy" in wanted["messages"][1]["content"] else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


async def test_a_model_of_ones_own_fits_in_forty_lines_and_drives_an_agent() -> None:
    assert len([line for line in OLLAMA.text.splitlines() if line.strip()]) <= 40
    names: dict[str, Any] = {}
    exec(compile(OLLAMA.text, "ollama.py", "exec"), names)

    @tool
    async def look_up(name: str) -> str:
        """Look somebody up."""
        return f"{name}, gold"

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        clerk = ClaudeAgent(
            "clerk",
            instructions=Instructions("1", "Be brief."),
            tools=[look_up],
            model=names["Ollama"]("q", url),
        )
        on = turn(agent="clerk", summary="Who is Ada?")
        assert await clerk(on) == Complete(answer="It is Ada, gold.")
        assert on.execution.report.usage.tokens == 2 * 10
        with pytest.raises(Retry, match="status 503"):
            await clerk(turn(agent="clerk", summary="busy"))
        server.shutdown()
    with pytest.raises(Retry, match="q cannot be reached"):
        await clerk(turn(agent="clerk", summary="Who is Ada?"))


def test_what_can_end_a_reply_is_told_of() -> None:
    first, *_ = tables(section(PAGE, "How a reply can end"))
    rows = {code for row in first for code in codes(row[0])}
    assert {PAUSED, CUT, *FATAL} <= rows
    assert f"{MAX_CALLS} calls" in PAGE
    assert f"more than {MAX_RESULT_BYTES // 1024} KiB" in PAGE


def test_the_settings_are_those_of_a_fleet_file() -> None:
    prices, limits = (parse_fleet(FLEET + block.text) for block in BLOCKS if block.kind == "fleet")
    assert set(prices_of(prices)) == {"claude-haiku-5-5", "my-own-model"}
    own = limits.fleet.models["claude-haiku-5-5"]
    assert (own.concurrency, own.per_minute) == (40, 1000)


def test_what_is_not_said_of_the_cache_is_as_the_page_says() -> None:
    (prices, _) = (parse_fleet(FLEET + block.text) for block in BLOCKS if block.kind == "fleet")
    mine = price_list(prices_of(prices))["my-own-model"]
    assert (mine.cache_read, mine.cache_write, mine.cache_write_1h) == (80_000_000, 10**9, 16 * 10**8)
    assert (
        "`cache_read` is then what `input` is, `cache_write` 1.25 times that and `cache_write_1h` twice"
        in PAGE
    )
    assert assumed_cache_prices(100) == {"cache_read": 100, "cache_write": 125, "cache_write_1h": 200}


def test_the_json_of_costs_has_the_fields_that_the_page_names() -> None:
    rows = table(section(PAGE, "Prices"), "name")
    told = {code for row in rows for cell in row for code in codes(cell)} - {"by", "total", "null"}
    assert told == set(Row.__struct_fields__)


def test_the_kinds_of_models_are_those_of_the_option() -> None:
    assert [codes(row[0])[0] for row in table(PAGE, "scripted")] == list(MODES)


def test_the_numbers_are_those_of_the_code() -> None:
    soon_ms, text_ms = _telemetry.SOON_S * 1000, _telemetry.TEXT_S * 1000
    assert f"text at most every {soon_ms:g} ms, where many are sent at most every {text_ms:g} ms" in PAGE
    assert f"{_telemetry.MOST_A_SECOND} notes a second for a round" in PAGE
    assert f"{rate_limit.FIRST_PAUSE_S:g} s at first" in PAGE
    assert f"doubles it, up to {rate_limit.LONGEST_PAUSE_S:g} s" in PAGE
    assert f"At most {rate_limit.LONGEST_ASKED_S / 3600:g} hour is believed" in PAGE
    assert f"the last {_execution.MOST_KEPT_S:g} s of them (at most a tenth)" in PAGE
