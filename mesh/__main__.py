"""`python -m mesh`, for wherever the command `mesh` is not on the path."""

from mesh.cli import main

main()
