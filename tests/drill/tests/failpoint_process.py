"""A process that goes through a failpoint: `<failpoint> <times>`."""

import sys

from mesh.service.failpoints import failpoint

if __name__ == "__main__":
    name, times = sys.argv[1], int(sys.argv[2])
    for number in range(times):
        failpoint(name)
        print(f"passed {number}", flush=True)  # noqa: T201 - for the test
