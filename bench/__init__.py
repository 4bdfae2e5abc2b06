"""Measurements of the mesh, each beside what it is to be compared with. `python -m bench`, or `make bench`.

The rule of this room: whatever is compared is measured in the same run, in turns, on the same machine,
and a figure is printed with its spread. Nothing here is asserted; a machine is no test.
"""


def main(argv: list[str]) -> int:
    """Run the measurements that `argv` asks for and print them; return the exit status."""
    from bench.command import main as run  # what it loads is not needed to know that it is here

    return run(argv)
