"""Taking a sound program apart: a name of it is replaced by a broken one, or the breaking fails loudly."""

from types import ModuleType
from typing import Any


class GoneAway(Exception):
    """What was to be broken is no longer there: the test would break nothing, and prove nothing."""


def replace(owner: ModuleType | type, name: str, broken: Any) -> Any:
    """Put `broken` in the place of a name that a module or class uses; return what stood there.

    Raises GoneAway.
    """
    if name not in vars(owner):
        raise GoneAway(f"{owner.__name__} has no {name} any more: break something else")
    sound = vars(owner)[name]
    setattr(owner, name, broken)
    return sound
