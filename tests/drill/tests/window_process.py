"""A process that goes through a window: `<window> <times>`."""

import sys

from mesh.service.failpoints import reached

if __name__ == "__main__":
    name, times = sys.argv[1], int(sys.argv[2])
    for number in range(times):
        reached(name)
        print(f"passed {number}", flush=True)  # noqa: T201 - for the test
