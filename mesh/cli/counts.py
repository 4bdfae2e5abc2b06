"""How many of something, in words: `1 event`, `2 events`."""


def counted(number: int, what: str, several: str = "") -> str:
    """Return a number and what it counts; `several` is the plural where no `s` makes one."""
    return f"{number} {what if number == 1 else several or what + 's'}"
