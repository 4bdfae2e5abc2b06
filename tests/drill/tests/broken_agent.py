"""An agent's process with one fault in its runtime, else the real one: `broken_agent.py FILE agent run …`.

The file names the fault, as a broken guard's does.

`ack-before-propose`     the inbox event is acknowledged before the proposal is stored
`no-journal`             steps are kept in this process alone
`no-fence`               a later round does not stop an earlier one
`effect-without-intent`  an effect is tried before anything of it is journaled
`new-key-each-round`     an effect has another key in each round
`lost-arguments`         what an effect was asked to do is never journaled, and nobody hears of it
`lost-remark`            what the code remarks is never journaled, and nobody hears of it
`lost-result`            what came of an effect is never journaled, and nobody hears of it
`stuck-step`             what the code remarks is never acknowledged
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from mesh.agent import _executor, _runtime
from mesh.agent._execution import Execution
from mesh.agent._journal import Journal
from mesh.agent._steps import StoredSteps
from mesh.bus.connection import Bus
from mesh.testing import MemorySteps
from protocol.wire.ids import derive
from protocol.wire.records import Record
from tests.drill.tests.broken_guard import HastyPuller, replace, run

_MEMORY = MemorySteps()


def ack_before_propose() -> None:
    replace(_runtime, "Puller", HastyPuller)


def no_journal() -> None:
    def forgetful(bus: Bus, agent: str) -> MemorySteps:
        return _MEMORY

    replace(_executor, "JetStreamSteps", forgetful)


def no_fence() -> None:
    async def only_read(steps: StoredSteps, round_: int) -> dict[str, Record]:
        return await steps.read(round_)

    replace(StoredSteps, "close", only_read)


def new_key_each_round() -> None:
    def key(execution: Execution, tool: str, digest: str) -> Any:
        return derive(sound(execution, tool, digest), execution.work.round)

    sound = replace(Execution, "_key", key)


def _losing(kind: str) -> None:
    async def write(journal: Journal, name: str, record: Record, nth: int) -> Any:
        return record if record.kind == kind else await sound(journal, name, record, nth)

    sound = replace(Journal, "write", write)


def effect_without_intent() -> None:
    _losing("intent")


def lost_arguments() -> None:
    async def write(journal: Journal, name: str, record: Record, nth: int) -> Any:
        kept = record if record.kind != "intent" else msgspec.structs.replace(record, arguments=None)
        return await sound(journal, name, kept, nth)

    sound = replace(Journal, "write", write)


def lost_remark() -> None:
    _losing("remark")


def lost_result() -> None:
    _losing("effect")


def stuck_step() -> None:
    async def write(journal: Journal, name: str, record: Record, nth: int) -> Any:
        if record.kind == "remark":
            await asyncio.Event().wait()
        return await sound(journal, name, record, nth)

    sound = replace(Journal, "write", write)


MODES: dict[str, Callable[[], None]] = {
    "ack-before-propose": ack_before_propose,
    "no-journal": no_journal,
    "no-fence": no_fence,
    "effect-without-intent": effect_without_intent,
    "new-key-each-round": new_key_each_round,
    "lost-arguments": lost_arguments,
    "lost-remark": lost_remark,
    "lost-result": lost_result,
    "stuck-step": stuck_step,
}

if __name__ == "__main__":
    run(MODES)
