"""Models behind a port: what a model is shown, what it may answer, and the loop between it and the tools."""

from mesh.model.agent import ClaudeAgent
from mesh.model.anthropic.model import HARD, ROUTING, WORK

__all__ = ["HARD", "ROUTING", "WORK", "ClaudeAgent"]
