"""Models behind a port: their prompts and replies, and the loop between a model and its tools."""

from mesh.model.agent import ClaudeAgent
from mesh.model.context_window import ContextWindow, Passage
from mesh.model.edges import Edge, to
from mesh.model.port import Hear, Model, PastReply, Prompt, PromptFile, PromptWithFiles, Reply, ToolCall
from mesh.model.prompt import Instructions
from mesh.model.supervisor import Flaw, Supervisor
from mesh.model.swarm import Swarm
from mesh.model.vendors import HARD, ROUTING, WORK
from mesh.model.vendors.openai import OpenAIModel
from mesh.model.vendors.openai_responses import ResponsesModel
from protocol.wire.commands import Usage
from protocol.wire.prices import Tokens

__all__ = [
    "HARD",
    "ROUTING",
    "WORK",
    "ClaudeAgent",
    "ContextWindow",
    "Edge",
    "Flaw",
    "Hear",
    "Instructions",
    "Model",
    "OpenAIModel",
    "Passage",
    "PastReply",
    "Prompt",
    "PromptFile",
    "PromptWithFiles",
    "Reply",
    "ResponsesModel",
    "Supervisor",
    "Swarm",
    "Tokens",
    "ToolCall",
    "Usage",
    "to",
]
