"""Which model drives the agents of `mesh demo` and `mesh dev`: `--model`, and what it takes.

Nothing is spent unasked. Without `--model` (or MESH_MODEL) rules reply in the models' place, and the key, if
there is one, is kept from every process.
"""

from collections.abc import Sequence
from enum import StrEnum

import click


class Kind(StrEnum):
    """What replies to prompts."""

    SCRIPTED = "scripted"
    CLAUDE = "claude"


model_option = click.option(
    "--model",
    type=click.Choice([each.value for each in Kind]),
    default=Kind.SCRIPTED.value,
    show_default=True,
    envvar="MESH_MODEL",
    show_envvar=True,
    help="What drives the agents: rules, or the real models, which need ANTHROPIC_API_KEY and money.",
)


def model_environment(kind: Kind) -> dict[str, str | None]:
    """Return the variables that agents driven by `kind` get; None takes one away.

    Raises UsageWrong where the SDK or the key is missing.
    """
    import os

    from mesh.errors import UsageWrong
    from mesh.local.server import VENDOR_KEYS
    from mesh.model.agent import KEY, VARIABLE, has_sdk

    if kind is Kind.SCRIPTED:
        return {VARIABLE: kind.value, **dict.fromkeys(VENDOR_KEYS)}
    if not has_sdk():
        raise UsageWrong("--model claude needs the vendor's SDK: install handoff-mesh[claude]")
    if not os.environ.get(KEY):
        raise UsageWrong(f"--model claude asks the real models, and needs {KEY} in the environment")
    return {VARIABLE: kind.value}


def in_words(kind: Kind, models: Sequence[str], rules: str) -> str:
    """Return in one line what drives the agents.

    Args:
        models: what the agents' cards name, without repetition.
        rules: where the rules are, in words.
    """
    if not models:
        return "agents without a model"
    if kind is Kind.SCRIPTED:
        return f"scripted model: {rules}, not a language model"
    return f"claude: real models, paid for with your key: {', '.join(models)}"
