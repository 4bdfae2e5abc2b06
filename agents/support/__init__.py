"""Support of an internet provider: triage, billing and technical over one database, people behind them.

What the agents of this fleet share: its records, the shape of a customer's id, and one tool.

Amounts are texts with a currency, days ISO 8601 dates. Unknown ids and addresses are a `ToolError`. If the
house rules forbid what was asked, the result tells so: the question was valid, and the answer is no.
"""

from typing import Annotated, Any

from pydantic import Field

from agents.records import Records, the_row
from mesh.agent import tool

RECORDS = Records("agents.support", "SUPPORT_DB")
connected = RECORDS.connected
CustomerId = Annotated[str, Field(pattern=r"^c-\d{4}$", description="Like c-1001.")]


@tool
def service_status(area: str) -> dict[str, Any]:
    """Say whether the network works in an area (a town)."""
    with connected() as db:
        row = the_row(
            db, f"We have no network in {area}.", "SELECT * FROM areas WHERE area = ?", area.strip().lower()
        )
    return dict(row)
