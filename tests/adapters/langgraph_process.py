"""Graphs of LangGraph in a process: `langgraph_process.py URL SEEDS`. `a` is adapted, `b` bare."""

import asyncio
import os
import sys
from typing import Any

sys.path.append(os.environ["ROOT"])

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from mesh.adapters import idempotency_key
from mesh.adapters.langgraph import mesh_agent
from mesh.agent import Move, Turn
from mesh.agent.definition import agent
from tests.adapters.served import note, serve


class Thinker(BaseChatModel):
    """A model that refunds, then answers."""

    @property
    def _llm_type(self) -> str:
        return "thinker"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        note("model")
        calls = [{"name": "refund", "args": {"cents": 500}, "id": "call-1"}] if len(messages) == 1 else []
        said = AIMessage("" if calls else "Refunded.", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


@tool
def refund(cents: int) -> str:
    """Pay money back."""
    note(f"refund {cents} {idempotency_key()}".rstrip())
    return "done"


def think(state: MessagesState) -> dict[str, Any]:
    return {"messages": [Thinker().invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("agent", think)
graph.add_node("tools", ToolNode([refund]))
graph.add_edge(START, "agent")
graph.add_conditional_edges("agent", tools_condition)
graph.add_edge("tools", "agent")
existing: Any = graph.compile()


@agent(name="b")
async def bare(turn: Turn) -> Move:
    state = await existing.ainvoke({"messages": [("user", turn.facts["text"])]})
    return turn.complete(str(state["messages"][-1].text))


if __name__ == "__main__":
    adapted = mesh_agent("a", existing, effects={"refund": "idempotent"})
    asyncio.run(serve([adapted, bare], *sys.argv[1:]))
