"""Instructions: an agent's system text, a file with a version that its card and its journal can name.

The first line says the version, `<!-- version: 3 -->`; the rest goes to the model as it stands.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_VERSION = r"[\w.-]{1,32}"
_FIRST = re.compile(rf"<!--\s*version:\s*(?P<version>{_VERSION})\s*-->")


@dataclass(frozen=True, slots=True)
class Instructions:
    """A system text and its version.

    Raises ValueError for a text that is blank, and for a version that is not 1 to 32 of letters, digits,
    `_`, `.` and `-`.
    """

    version: str
    text: str

    def __post_init__(self) -> None:
        if re.fullmatch(_VERSION, self.version) is None:
            raise ValueError(
                f"not a version of instructions: {self.version[:64]!r}; 1 to 32 of a-z 0-9 _ . -"
            )
        if not self.text.strip():
            raise ValueError("instructions have to say something: the text is blank")


def parse_instructions(source: str, name: str = "instructions") -> Instructions:
    """Return the instructions in `source`. Raises ValueError where the version line or the text lacks."""
    first, _, rest = source.partition("\n")
    found = _FIRST.fullmatch(first.strip())
    if found is None:
        raise ValueError(f"{name}: the first line has to be <!-- version: … -->")
    if not rest.strip():
        raise ValueError(f"{name}: no text after the version line")
    return Instructions(found["version"], rest.strip())


def load_instructions(path: Path) -> Instructions:
    """Return the instructions in a file. Raises OSError, and ValueError as `parse_instructions`."""
    return parse_instructions(path.read_text(encoding="utf-8"), path.name)
