"""`python -m tests.drill`."""

from tests.drill.command import app

app()
