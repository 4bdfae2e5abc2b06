"""Which alarm a command is run for first, when many wait."""

import asyncio
import shlex
from pathlib import Path
from typing import Literal

from mesh.ops.watch import Alarm, Hooks
from tests.servers import PATIENCE_S


def alarm(what: Literal["escalation", "ask", "dead_letter"], request: str) -> Alarm:
    return Alarm(what=what, at=1, request=request, agent="a", summary="s", reason="r", url="u")


async def test_what_waits_for_people_is_told_before_dead_letters(tmp_path: Path) -> None:
    told = tmp_path / "told"
    wrong = list[str]()
    hooks = Hooks(
        f'echo "$MESH_REQUEST" >> {shlex.quote(str(told))}', within_s=PATIENCE_S, on_trouble=wrong.append
    )
    for each in (
        alarm("dead_letter", "1"),
        alarm("dead_letter", "2"),
        alarm("ask", "3"),
        alarm("escalation", "4"),
    ):
        hooks.add(each)
    async with asyncio.timeout(PATIENCE_S):
        await hooks.finish()
    await hooks.close()
    assert told.read_text().split() == ["3", "4", "1", "2"]
    assert wrong == []
