"""Models behind a port: what a model is shown, what it may answer, and the loop between it and the tools."""

from mesh.model.claude import HARD, ROUTING, WORK
from mesh.model.claude_agent import ClaudeAgent

__all__ = ["HARD", "ROUTING", "WORK", "ClaudeAgent"]
