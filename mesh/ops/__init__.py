"""The operator's API, without a terminal.

A module is imported on first use. So `from mesh import ops` costs nothing, and no command pays for another.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mesh.ops import anchors as anchors
    from mesh.ops import archive as archive
    from mesh.ops import archived as archived
    from mesh.ops import backup as backup
    from mesh.ops import batch as batch
    from mesh.ops import bulk as bulk
    from mesh.ops import calls as calls
    from mesh.ops import chain_parts as chain_parts
    from mesh.ops import checks as checks
    from mesh.ops import cloudevents as cloudevents
    from mesh.ops import conf as conf
    from mesh.ops import control as control
    from mesh.ops import dead_letters as dead_letters
    from mesh.ops import decisions as decisions
    from mesh.ops import delivery as delivery
    from mesh.ops import diff as diff
    from mesh.ops import eval_file as eval_file
    from mesh.ops import evals as evals
    from mesh.ops import explain as explain
    from mesh.ops import fleet_checks as fleet_checks
    from mesh.ops import fork as fork
    from mesh.ops import frames as frames
    from mesh.ops import gauges as gauges
    from mesh.ops import health as health
    from mesh.ops import hops as hops
    from mesh.ops import index as index
    from mesh.ops import journals as journals
    from mesh.ops import log as log
    from mesh.ops import memory as memory
    from mesh.ops import policies as policies
    from mesh.ops import prompt as prompt
    from mesh.ops import queue as queue
    from mesh.ops import recording as recording
    from mesh.ops import rehearsal as rehearsal
    from mesh.ops import requests as requests
    from mesh.ops import requeue as requeue
    from mesh.ops import rerun as rerun
    from mesh.ops import restore as restore
    from mesh.ops import roster as roster
    from mesh.ops import rows as rows
    from mesh.ops import schedules as schedules
    from mesh.ops import servers as servers
    from mesh.ops import shadows as shadows
    from mesh.ops import spending as spending
    from mesh.ops import statistics as statistics
    from mesh.ops import watch as watch
    from mesh.ops import where as where
    from mesh.ops import words as words
else:

    def __getattr__(name):
        if find_spec(f"mesh.ops.{name}") is None:
            raise AttributeError(f"module 'mesh.ops' has no attribute {name!r}")
        return import_module(f"mesh.ops.{name}")
