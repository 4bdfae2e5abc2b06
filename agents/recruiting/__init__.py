"""Recruiting of a company: intake, screening, scheduling, offer and compliance over one database.

What the agents of this fleet share: records, shapes of ids, sums of money, labels, and one tool.
"""

import sqlite3
from typing import Annotated, Any

from pydantic import Field

from agents.records import Records, the_row
from mesh.agent import ToolError, tool

RECORDS = Records("agents.recruiting", "RECRUITING_DB")
connected = RECORDS.connected

CandidateId = Annotated[str, Field(pattern=r"^k-\d{4}$", description="Like k-1001.")]
VacancyId = Annotated[str, Field(pattern=r"^v-\d{3}$", description="Like v-101.")]
SlotId = Annotated[str, Field(pattern=r"^sl-\d{3}$", description="Like sl-101.")]
Euros = Annotated[int, Field(gt=0, description="Whole euros a year.")]
OfferId = Annotated[str, Field(pattern=r"^o-\d{3}$", description="Like o-001.")]

PERSON, PAY = "pii", "salary"
"""Labels: a person's identity; what a person earns or asks for."""

LABELS = {
    "text": (PERSON, PAY),
    "candidate_name": (PERSON,),
    "email": (PERSON,),
    "phone": (PERSON,),
    "birth_date": (PERSON,),
    "salary_expectation": (PAY,),
    "offer_amount": (PAY,),
    "at_least": (PAY,),
}
"""By fact key; a model cannot change them. An applicant's own words may name any person or sum."""


def money(euros: int) -> str:
    """Return a yearly salary for people: `62,000 EUR`."""
    return f"{euros:,} EUR"


# --- records ----------------------------------------------------------------------------------------


def candidate_row(db: sqlite3.Connection, candidate_id: str) -> sqlite3.Row:
    """Return a candidate's record. Raises ToolError."""
    query = "SELECT * FROM candidates WHERE id = ?"
    return the_row(db, f"There is no candidate {candidate_id}.", query, candidate_id)


def vacancy_row(db: sqlite3.Connection, vacancy_id: str) -> sqlite3.Row:
    """Return a vacancy, its band included. Raises ToolError."""
    missing = f"There is no vacancy {vacancy_id}."
    return the_row(db, missing, "SELECT * FROM vacancies WHERE id = ?", vacancy_id)


def offer_row(db: sqlite3.Connection, offer_id: str) -> sqlite3.Row:
    """Return an offer. Raises ToolError."""
    return the_row(db, f"There is no offer {offer_id}.", "SELECT * FROM offers WHERE id = ?", offer_id)


@tool
def find_vacancy(vacancy_id: VacancyId | None = None, title: str | None = None) -> dict[str, Any]:
    """Find a vacancy by its id or its title. `urgent`: an offer is prepared before the interview."""
    if (vacancy_id is None) == (title is None):
        raise ToolError("Give either a vacancy's id or its title.")
    with connected() as db:
        row = the_row(
            db,
            f"There is no vacancy {vacancy_id or title}.",
            "SELECT id AS vacancy_id, title, status, urgent FROM vacancies WHERE id = ? OR title = ?",
            vacancy_id,
            None if title is None else title.strip(),
        )
    return dict(row) | {"urgent": bool(row["urgent"])}
