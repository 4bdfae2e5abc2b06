"""An agent without a model, for tests that run it as a process."""

from mesh.agent import Move, Turn, agent


@agent(name="echo")
async def echo(turn: Turn) -> Move:
    return turn.complete("pong")
