from mesh.agent import Move, Turn, agent


@agent(name="front", description="Finds out who is asking")
async def front(turn: Turn) -> Move:
    if turn.refusals:  # the guard refused the last move; this is the same turn's next round
        return turn.escalate(f"refused: {turn.refusals[-1].rule}")
    name = turn.facts.get("name", "stranger")
    return turn.transfer("greeter", summary="greet them by name", facts={"greet": name})


@agent(name="greeter", description="Greets")
async def greeter(turn: Turn) -> Move:
    return turn.complete(f"Hello, {turn.facts['greet']}!")
