"""A bare handler that works for seconds without a step is warned about; one with steps is not."""

import pytest

from mesh.agent import Move, Turn
from mesh.agent._executor import UNJOURNALED_S
from mesh.agent.definition import Agent
from tests.guard.stage import Stage
from tests.logs import captured_logs
from tests.servers import PATIENCE_S


@pytest.mark.parametrize("with_step", [False, True])
async def test_a_warning_names_the_agent_whose_code_journals_nothing(stage: Stage, with_step: bool) -> None:
    passed_s = 0.0

    async def handle(turn: Turn) -> Move:
        nonlocal passed_s
        if with_step:
            await turn.now()
        passed_s += UNJOURNALED_S
        return turn.complete("done")

    with captured_logs() as logs:
        runtime = await stage.runtime(Agent("a", handle))
        runtime._executor._empty_journals.now = lambda: passed_s
        client = await stage.client()
        for text in ("hello", "again"):
            await client.wait(await client.submit(text), timeout_s=PATIENCE_S)
    warned = [line["agent"] for line in logs if line["event"] == "nothing_journaled"]
    assert warned == ([] if with_step else ["a"])
