"""A model of LangChain that replies from a script, and the graphs around it."""

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import Field


class PowerCut(Exception):
    """The process dies here. LangChain takes no other exceptions from a model."""


class Script(BaseChatModel):
    """A model that replies what it is told, in order, and keeps what it was asked."""

    replies: list[Any]
    asked: list[list[BaseMessage]] = Field(default_factory=list)
    offered: list[list[str]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Sequence[Any], **more: Any) -> Any:
        return self.bind(tools=[named(each) for each in tools], **more)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        self.asked.append(list(messages))
        self.offered.append([each["function"]["name"] for each in options.get("tools", ())])
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        used = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
        said = reply if isinstance(reply, AIMessage) else AIMessage(reply, usage_metadata=used)
        return ChatResult(generations=[ChatGeneration(message=said)])

    @property
    def told(self) -> list[str]:
        """What came of each call, as the model reads it in its last call."""
        return [str(each.text) for each in self.asked[-1] if isinstance(each, ToolMessage)]


def named(given: Any) -> dict[str, Any]:
    return {"function": {"name": given.name}} if isinstance(given, BaseTool) else dict(given)


def script(*replies: Any) -> Script:
    return Script(replies=list(replies))


def calls(*wanted: tuple[str, dict[str, Any]]) -> AIMessage:
    made = [{"name": name, "args": args, "id": f"{name}-{n}"} for n, (name, args) in enumerate(wanted)]
    return AIMessage("", tool_calls=made)


def graph(model: Any, *tools: Any, is_async: bool = True) -> Any:
    """Return the usual graph: a model, and a node for its tools. A sync node runs in a thread."""
    bound = model.bind_tools(tools) if tools else model

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    def think_in_a_thread(state: MessagesState) -> dict[str, Any]:
        return {"messages": [bound.invoke(state["messages"])]}

    made = StateGraph(MessagesState)
    made.add_node("agent", think if is_async else think_in_a_thread)
    made.add_node("tools", ToolNode(tools))
    made.add_edge(START, "agent")
    made.add_conditional_edges("agent", tools_condition)
    made.add_edge("tools", "agent")
    return made.compile()


def node(function: Callable[..., Any], state: Any = MessagesState) -> Any:
    """Return a graph of one node."""
    made = StateGraph(state)
    made.add_node("only", function)
    made.add_edge(START, "only")
    made.add_edge("only", END)
    return made.compile()


@tool
def look() -> str:
    """Look."""
    return "seen"
