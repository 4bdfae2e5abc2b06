"""Which model drives the agents of `mesh demo` and `mesh dev`: `--model`, and what it takes.

Nothing is spent unasked: without `--model` (or MESH_MODEL) rules stand in for the models, and the key, if
there is one, is kept from everybody.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from mesh.fleet.file import FleetFile


class Kind(StrEnum):
    """What replies to prompts."""

    SCRIPTED = "scripted"
    STUB = "stub"
    CLAUDE = "claude"


ModelOption = Annotated[
    Kind,
    typer.Option(
        "--model",
        envvar="MESH_MODEL",
        help="What drives the agents: rules; the vendor's SDK against a stand-in here; or the real models, "
        "which need ANTHROPIC_API_KEY and cost money.",
    ),
]


class Driven(NamedTuple):
    """What agents have to be told of the model."""

    kind: Kind
    environment: dict[str, str | None]
    """Of the agents' processes; None takes a variable away."""
    stand_in: int | None = None
    """The stand-in's process."""


@contextlib.asynccontextmanager
async def driven(
    kind: Kind,
    file: "FleetFile",
    *,
    log: Path,
    search: Sequence[Path],
    on_trouble: Callable[[str], None],
) -> AsyncIterator[Driven]:
    """Give what a fleet's agents need to be driven by `kind`, and what has to run for it meanwhile.

    Args:
        log: the file that the stand-in writes what goes wrong to.
        search: directories in which the agents' modules are looked for.

    Raises UsageWrong where the SDK or the key is missing, and StandInFailed.
    """
    import os

    from mesh.local.standin import StandIn
    from mesh.local.vendor_keys import VARIABLES
    from mesh.model.choose import KEY, STUB_URL, VARIABLE, has_sdk
    from mesh.ops.errors import UsageWrong

    told: dict[str, str | None] = {VARIABLE: kind.value, STUB_URL: None}
    if kind is not Kind.SCRIPTED and not has_sdk():
        raise UsageWrong(f"--model {kind.value} needs the vendor's SDK: install handoff-mesh[claude]")
    if kind is Kind.CLAUDE:
        if not os.environ.get(KEY):
            raise UsageWrong(f"--model claude asks the real models, and needs {KEY} in the environment")
        yield Driven(kind, told)
        return
    without_key = told | dict.fromkeys(VARIABLES)
    if kind is Kind.SCRIPTED:
        yield Driven(kind, without_key)
        return
    agents = [section.module for section in file.agents.values() if section.module is not None]
    async with StandIn(agents, log, search=search, on_trouble=on_trouble) as stand_in:
        yield Driven(kind, without_key | {STUB_URL: stand_in.url}, stand_in.pid)


def in_words(driven_by: Driven, models: Sequence[str], rules: str) -> str:
    """Return in one line what drives the agents.

    Args:
        models: what the agents say of themselves on their cards, without repetition.
        rules: where the rules are, in words.
    """
    if not models:
        return "agents without a model"
    named = ", ".join(model.removeprefix(f"{Kind.STUB}: ") for model in models)
    match driven_by.kind:
        case Kind.SCRIPTED:
            return f"scripted model: {rules}, not a language model"
        case Kind.STUB:
            return (
                f"stub model: the vendor's SDK against a stand-in here (process {driven_by.stand_in}) that "
                f"follows {rules}, not a language model; asked for {named}"
            )
        case Kind.CLAUDE:
            return f"claude: real models, paid for with your key: {named}"
