"""A model of Pydantic AI that replies from a script."""

from typing import Any, TypeAlias

from pydantic_ai import (
    Agent,
    ApprovalRequired,
    ModelMessage,
    ModelResponse,
    RunContext,
    TextPart,
    Tool,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

Reply: TypeAlias = ModelResponse | str | tuple[str, dict[str, Any]] | BaseException


class Script:
    """A model that replies what it is told, in order, and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[list[ModelMessage]] = []
        self.offered: list[list[str]] = []
        self.model = FunctionModel(self)

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        self.offered.append([tool.name for tool in info.function_tools])
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, tuple):
            return ModelResponse(parts=[ToolCallPart(*reply)])
        return reply if isinstance(reply, ModelResponse) else ModelResponse(parts=[TextPart(reply)])

    @property
    def told(self) -> list[Any]:
        """What came of each call, as the model reads it."""
        return [message[-1].parts[-1].content for message in self.asked[1:]]  # type: ignore[union-attr]


class PowerCut(BaseException):
    """The process dies here."""


def look() -> str:
    """Look."""
    return "seen"


def refund() -> str:
    """Pay back."""
    return "refunded"


def with_approval(script: Script, paid: list[int], *, at_run_time: bool) -> Agent[Any, str]:
    def refund(ctx: RunContext[Any], cents: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        paid.append(cents)
        return "refunded"

    return Agent(script.model, tools=[Tool(refund, requires_approval=not at_run_time)])
