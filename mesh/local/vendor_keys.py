"""The vendor's keys: only an agent has a use for them, so that nothing else is started with them."""

from collections.abc import Mapping

VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


def without_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the keys to a model's vendor."""
    return {name: value for name, value in environ.items() if name not in VARIABLES}
