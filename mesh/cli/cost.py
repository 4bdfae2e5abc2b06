"""`mesh cost`: what model calls cost, as the agents' own reports in the log say."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mesh.cli.options import AsJson, Output, Where, on_the_bus
from mesh.cli.output import Format, chosen, emit, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.prices import Metered
    from protocol.spending import Spent

_READERS = ("viewer", "operator", "admin")
_NANO = 1e9


class By(StrEnum):
    """What costs are summed up by."""

    AGENT = "agent"
    EDGE = "edge"
    MODEL = "model"
    CLIENT = "client"
    REQUEST = "request"


Source = Annotated[
    str | None,
    typer.Argument(
        metavar="[ID|FILE]",
        help="A request, or a file of exported events; else the whole log.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        help="Only what was reported since: a time (ISO-8601), or 90s, 10m, 2h, 1d ago.",
        show_default=False,
    ),
]


@on_the_bus
async def cost(
    where: Where,
    source: Source = None,
    by: Annotated[By, typer.Option("--by", help="What to sum up by.")] = By.AGENT,
    since: Since = None,
    output: Output = Format.TABLE,
    as_json: AsJson = False,
) -> None:
    """Sum up what models cost: dollars, tokens, and how much of the prompts came from the vendor's cache."""
    from mesh.cli.times import microseconds_at

    begin = 0 if since is None else microseconds_at(since)
    lines = [line for line in await _lines(where, source) if line.at >= begin]
    rows = _by_model(lines) if by is By.MODEL else _by_group(lines, by)
    if chosen(output, as_json) is Format.JSON:
        emit({"by": by.value, "rows": rows})
        return
    table(
        (by.value, "dollars", "calls", "tokens", "read", "cached", "written"),
        [
            (
                row["name"],
                f"{row['nano_dollars'] / _NANO:.6f}",
                row["model_calls"],
                row["tokens"],
                row["prompt_tokens"],
                "" if row["cached_share"] is None else f"{row['cached_share']:.0%}",
                row["output_tokens"],
            )
            for row in rows
        ],
        whole=(by.value,),
    )


async def _lines(where: Where, source: str | None) -> "list[Spent]":
    from mesh.cli.reading import bodies_of, decoded, every
    from protocol import codec
    from protocol.spending import Spending

    account = Spending()
    if source is not None:
        for bodies in (await bodies_of(where, source)).values():
            for event in decoded(bodies):
                account.take(event)
        return account.lines
    async with await where.connect(*_READERS) as bus:
        async for kept in every(bus, "LOG", "mesh.evt.>"):
            account.take(codec.decode_event(kept.data))
    return account.lines


def _by_group(lines: "Iterable[Spent]", by: By) -> list[dict[str, Any]]:
    from protocol.prices import UNUSED
    from protocol.spending import BY, summed

    return [
        _row(name, sum(used.models.values(), UNUSED), used.nano_dollars, used.model_calls, used.tokens)
        for name, used in summed(lines, BY[by.value]).items()
    ]


def _by_model(lines: "Iterable[Spent]") -> list[dict[str, Any]]:
    from protocol.spending import by_model

    return [
        _row(name, used, used.nano_dollars, used.calls, used.total) for name, used in by_model(lines).items()
    ]


def _row(name: str, used: "Metered", nano_dollars: int, model_calls: int, tokens: int) -> dict[str, Any]:
    from protocol.spending import cached_share

    return {
        "name": name,
        "nano_dollars": nano_dollars,
        "model_calls": model_calls,
        "tokens": tokens,
        "prompt_tokens": used.prompt,
        "cached_share": cached_share(used),
        "output_tokens": used.output,
        "thinking_tokens": used.thinking,
    }
