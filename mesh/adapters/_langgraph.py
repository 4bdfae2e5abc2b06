"""Runs of a graph of LangGraph: from its beginning in each round, with a memory that lasts as long.

Interrupts become questions. LangGraph runs a node that was interrupted again from its top, and so does a
turn: calls before the interrupt are further steps then.
"""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel
from langgraph.types import Command
from pydantic_core import to_jsonable_python

from mesh.adapters._langchain import LIVE, GraphRound, journaled
from mesh.adapters._langchain_models import watch_models
from mesh.adapters._langchain_tools import watch_tools
from mesh.adapters._model import json_kind
from mesh.adapters._round import AdaptedRound, words_of
from mesh.agent.errors import Permanent
from mesh.agent.turn import Turn
from mesh.agent.values import short
from mesh.model.loop import ModelGaveUp
from mesh.service.logs import get_logger
from protocol.wire.ids import HUMAN
from protocol.wire.moves import Move

_log = get_logger(__name__)

_ASKED = "__interrupt__"
_warned: set[str] = set()
"""Agents that were warned of."""


def require_graph(graph: Any) -> None:
    """Raise TypeError for what is no compiled graph."""
    if not isinstance(graph, Pregel):
        hint = ": compile it" if hasattr(graph, "compile") else ""
        raise TypeError(f"a compiled graph of LangGraph is wanted, not a {type(graph).__name__}{hint}")


async def run(
    graph: Pregel[Any, Any, Any, Any],
    offered_in: frozenset[str],
    answer: Callable[[Any], Any] | None,
    context: Callable[[Turn], Any] | None,
    config: Mapping[str, Any],
    round_: AdaptedRound,
) -> Move:
    """Run the graph until it comes to a move without an outcome. Raises Returned."""
    turn = round_.turn
    own = graph.copy({"checkpointer": InMemorySaver()})
    settings: Any = {
        **config,
        "callbacks": [*(config.get("callbacks") or ()), LIVE],
        "configurable": {**config.get("configurable", {}), "thread_id": turn.id},
        "max_concurrency": 1,  # nodes of one step begin in an order, and so do their calls
    }
    given = None if context is None else context(turn)
    asked: Any = (round_.how.prompt or words_of)(turn)
    if isinstance(asked, str):
        asked = {"messages": [{"role": "user", "content": asked}]}
    found = GraphRound(round_, offered_in)
    with journaled(found):
        while True:
            try:
                state = await own.ainvoke(asked, settings, context=given)
            except GraphRecursionError as error:
                raise ModelGaveUp(short(str(error).partition("\n")[0])) from error
            if waiting := state.get(_ASKED) if isinstance(state, Mapping) else None:
                asked = Command(resume={each.id: await _reply(round_, each.value) for each in waiting})
                continue
            if stops := (await own.aget_state(settings)).next:
                before = ", ".join(stops)
                raise Permanent(
                    f"the graph stops at {before}, and only an `interrupt` says what it waits for"
                )
            _warn_of_unknown(round_, found.tools)
            why = await round_.outcome_of(round_.answered((answer or _answer)(state)))
            if not isinstance(state, Mapping) or "messages" not in state:
                raise Permanent(f"the answer was refused, and this graph has no messages to say so: {why}")
            # An earlier round's answer was refused: the model reads why.
            asked = {"messages": [{"role": "user", "content": why}]}


async def _reply(round_: AdaptedRound, value: Any) -> Any:
    """Return the reply to what a graph asks; None if nobody replied in time."""
    shown = to_jsonable_python(value, fallback=json_kind)
    question = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    of = HUMAN if round_.how.approver == "human" else None
    return (await round_.outcome(round_.turn.ask(question, of=of))).reply


def _answer(state: Any) -> Any:
    """Return the answer in a graph's last state, as JSON."""
    if isinstance(state, Mapping):
        if state.get("structured_response") is not None:
            state = state["structured_response"]
        elif state.get("messages"):
            state = state["messages"][-1]
    return (
        str(state.text) if isinstance(state, BaseMessage) else to_jsonable_python(state, fallback=json_kind)
    )


def _warn_of_unknown(round_: AdaptedRound, tools: Collection[str]) -> None:
    """Warn once of effects that name no tool: they count for nothing. A graph does not list its tools."""
    agent, unknown = round_.turn.agent, sorted(round_.how.effects.keys() - tools)
    if unknown and agent not in _warned:
        _warned.add(agent)
        _log.warning("effects_unknown", agent=agent, names=unknown, tools=sorted(tools))


watch_models()
watch_tools()
