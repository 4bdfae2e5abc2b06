"""`mesh`, in which a guard probes the mesh several times a second: a test waits for what its gauges show."""

from mesh.cli import app
from mesh.ops import gauges

if __name__ == "__main__":
    gauges.PROBE_S = 0.3
    app()
