"""scheduling: books interviews and writes to candidates about them.

Accepts the intents `interview` and `reschedule` with the facts `candidate_id` and `vacancy_id`. It may see
who a candidate is, but not what they ask for. Gives the work on to offer where a vacancy is urgent.
"""

import sqlite3
from pathlib import Path
from typing import Any, Literal

from agents.records import once, the_row
from agents.recruiting import (
    LABELS,
    CandidateId,
    SlotId,
    VacancyId,
    candidate_row,
    connected,
    find_vacancy,
)
from mesh.agent import tool
from mesh.model import ROUTING, ClaudeAgent

PartOfDay = Literal["morning", "afternoon"]

_FREE = "SELECT id, starts FROM slots WHERE vacancy_id = ? AND candidate_id IS NULL ORDER BY starts"


@tool
def list_slots(vacancy_id: VacancyId, part: PartOfDay | None = None) -> list[dict[str, Any]]:
    """List the free interview slots of a vacancy, the earliest first; with `part`, only those."""
    with connected() as db:
        rows = db.execute(_FREE, (vacancy_id,)).fetchall()
    return [
        {"slot_id": row["id"], "starts": row["starts"]}
        for row in rows
        if part is None or (row["starts"][11:13] < "12") == (part == "morning")
    ]


@tool(effect="idempotent")
def book_slot(slot_id: SlotId, candidate_id: CandidateId, idempotency_key: str) -> dict[str, Any]:
    """Book an interview slot and write to the candidate; a slot booked before for the same vacancy is freed.

    Says `booked: false` where somebody else was faster, and then the `next_free` one.
    """
    with connected() as db:

        def book() -> dict[str, Any]:
            candidate_row(db, candidate_id)
            slot = the_row(db, f"There is no slot {slot_id}.", "SELECT * FROM slots WHERE id = ?", slot_id)
            if slot["candidate_id"] not in (None, candidate_id):
                after = db.execute(_FREE, (slot["vacancy_id"],)).fetchone()
                return {"booked": False, "next_free": None if after is None else after["id"]}
            before = _instead_of(db, candidate_id, slot)
            db.execute("UPDATE slots SET candidate_id = ? WHERE id = ?", (candidate_id, slot_id))
            db.execute(
                "INSERT INTO applications VALUES (?, ?, 'invited') "
                "ON CONFLICT (candidate_id, vacancy_id) DO UPDATE SET status = 'invited'",
                (candidate_id, slot["vacancy_id"]),
            )
            text = f"Your interview is on {slot['starts']}."
            db.execute("INSERT INTO mails VALUES (?, 'interview', ?)", (candidate_id, text))
            return {"booked": True, "slot_id": slot_id, "starts": slot["starts"], "instead_of": before}

        return once(db, idempotency_key, "book_slot", book)


def _instead_of(db: sqlite3.Connection, candidate_id: str, slot: sqlite3.Row) -> str | None:
    """Free the slot that this candidate had for the same vacancy; return when it was."""
    query = "SELECT id, starts FROM slots WHERE candidate_id = ? AND vacancy_id = ? AND id <> ?"
    held = db.execute(query, (candidate_id, slot["vacancy_id"], slot["id"])).fetchone()
    if held is None:
        return None
    db.execute("UPDATE slots SET candidate_id = NULL WHERE id = ?", (held["id"],))
    return str(held["starts"])


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "scheduling",
    description="Books interview slots, moves them, and writes to the candidate.",
    instructions=HERE / "prompts" / "scheduling.md",
    tools=(book_slot, find_vacancy, list_slots),
    model=ROUTING,
    script=HERE / "rules.toml",
    labels=LABELS,
)
