"""Garbage collection as a service wants it: rarely.

What was imported lives as long as the process, and a message leaves hardly a cycle behind: looking for them
as often as Python does by default cost a guard a fifth of its time (docs/benchmarks.md).
"""

import gc

_RARELY = (50_000, 20, 100)
"""Objects made until the youngest are looked through, and how often that goes before the older ones are."""


def collect_rarely() -> None:
    """Set this process's collector for a service; called once, when everything is imported."""
    gc.freeze()
    gc.set_threshold(*_RARELY)
