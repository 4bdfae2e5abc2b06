"""`mesh why`: what a verdict rested on, and what would have been allowed."""

from typing import Annotated

import typer

from mesh.cli.options import AsJson, Output, SourceArgument, Where, on_the_bus
from mesh.cli.output import Format, chosen, emit, say


@on_the_bus
async def why(
    where: Where,
    source: SourceArgument,
    n: Annotated[
        int | None,
        typer.Argument(metavar="N", help="The event; by default the last refusal, else the last verdict."),
    ] = None,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Explain a verdict, and what would be allowed."""
    from mesh.ops.explain import reasons, sentences
    from mesh.ops.requests import decoded, one_of

    found = reasons(decoded(await one_of(where, source)), n)
    if chosen(output, as_json) is Format.JSON:
        emit(found)
        return
    for sentence in sentences(found):
        say(sentence)
