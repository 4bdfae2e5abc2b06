"""The peer: LangGraph with its SQLite checkpointer does the same work, in the same rounds.

Five nodes in line, `durability="sync"`, each request a thread of its own; the same text, facts, summary and
answer. It is given what helps it:

* its own asynchronous saver (`AsyncSqliteSaver`), which keeps the database in WAL mode;
* a process for each core, each with a database of its own, so that nobody waits for another's lock;
* the load inside the process: no client, no wire, no message between the nodes;
* edges that are fixed: nothing decides whom the work goes to, and nothing is refused.

Without fsync, the mesh's server writes to the page cache (a killed process loses nothing, a power failure
may); SQLite has `synchronous=OFF`, which promises the same. With fsync, each publish of the mesh is synced;
SQLite has `synchronous=FULL`, which syncs each commit.

A member is `python -m bench.peer NAME DATABASE OFF|FULL`.
"""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from bench.crew import Crew, obey
from bench.load import ANSWER, FACTS, SUMMARY, TEXT, Task, run
from bench.place import AGENTS
from mesh.service.run import collect_rarely

if TYPE_CHECKING:  # a member alone imports LangGraph: that takes a second of CPU
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.graph.state import CompiledStateGraph


@contextlib.asynccontextmanager
async def peer(directory: Path, *, workers: int, sync_always: bool) -> AsyncIterator[Crew]:
    """Start so many of LangGraph's processes, with their databases in `directory`."""
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    synchronous = "FULL" if sync_always else "OFF"
    async with Crew(directory) as crew:
        async with asyncio.TaskGroup() as starting:
            for number in range(workers):
                name = f"langgraph-{number}"
                database = str(directory / f"{name}.sqlite")
                starting.create_task(crew.start(name, "bench.peer", name, database, synchronous))
        yield crew


# --- inside a member ------------------------------------------------------------------------------


class State(TypedDict, total=False):
    """What travels from node to node; the checkpointer stores all of it at each step."""

    text: str
    facts: list[Any]
    summary: str
    answer: str


async def _pass_on(state: State) -> State:
    return {"summary": SUMMARY}


async def _answer(state: State) -> State:
    return {"answer": ANSWER}


def graph(saver: "AsyncSqliteSaver") -> "CompiledStateGraph[State, None, State, State]":
    """Return the five nodes in line."""
    from langgraph.graph import END, START, StateGraph

    builder = StateGraph(State)
    for name in AGENTS:
        builder.add_node(name, _answer if name == AGENTS[-1] else _pass_on)
    for giver, taker in itertools.pairwise((START, *AGENTS, END)):
        builder.add_edge(giver, taker)
    return builder.compile(checkpointer=saver)


async def _member(name: str, database: str, synchronous: str) -> None:
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with aiosqlite.connect(database) as connection:
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        await connection.execute(f"PRAGMA synchronous={synchronous}")
        made, numbers = graph(saver), itertools.count()
        facts = [msgspec.to_builtins(fact) for fact in FACTS]

        async def one() -> None:
            thread: RunnableConfig = {"configurable": {"thread_id": f"{name}-{next(numbers)}"}}
            said = await made.ainvoke(State(text=TEXT, facts=facts), thread, durability="sync")
            if said["answer"] != ANSWER:
                raise RuntimeError(f"{thread}: {said}")

        async def task(told: Any) -> Any:
            return await run(one, msgspec.convert(told, Task))

        await obey(task)


if __name__ == "__main__":
    collect_rarely()  # as the mesh's services do
    asyncio.run(_member(*sys.argv[1:4]))
