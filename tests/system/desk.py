"""A small fleet for the command line's tests: each text that a client may write leads somewhere else."""

from mesh.agent import Move, Turn, agent


@agent(name="front", description="Reads what comes in")
async def front(turn: Turn) -> Move:
    """Go by the first word of what the client wrote."""
    word = str(turn.facts["text"]).split()[0]
    if turn.refusals:
        return turn.escalate(f"refused by {turn.refusals[-1].rule}")
    if word == "person":
        return (
            turn.escalate("a person has to decide")
            if turn.handoff.move == "submit"
            else turn.complete("decided")
        )
    if word == "stranger":
        return turn.transfer("nobody", summary="there is no such agent")
    if word == "away":
        return turn.transfer("absent", summary="it is never there")
    if word == "give-up":
        return turn.fail("there is nothing to be done")
    return turn.transfer("greeter", summary="greet them", facts={"greet": turn.facts.get("name", "stranger")})


@agent(name="greeter", description="Greets")
async def greeter(turn: Turn) -> Move:
    return turn.complete(f"Hello, {turn.facts['greet']}!")
