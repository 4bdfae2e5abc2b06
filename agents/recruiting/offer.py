"""offer: drafts offers and, after compliance's review and a person's approval, sends them.

Accepts the intent `offer` with the facts `candidate_id` and `vacancy_id`. What is over the limit, or above
what a vacancy may be paid, is decided by a person.
Over the limit no agent sends anything: people do that.
"""

import sqlite3
from pathlib import Path
from typing import Any

from agents.records import done, once
from agents.recruiting import (
    LABELS,
    CandidateId,
    Euros,
    OfferId,
    VacancyId,
    candidate_row,
    connected,
    money,
    offer_row,
    vacancy_row,
)
from mesh.agent import NOT_DONE, tool
from mesh.model import WORK, ClaudeAgent

LIMIT_EUR = 100_000
"""Per year. Larger offers are decided and sent by people."""


@tool
def interview_result(candidate_id: CandidateId, vacancy_id: VacancyId) -> dict[str, Any]:
    """Say what came of the interview: `hire`, `no hire`, or `none` if there was none yet."""
    query = "SELECT result FROM interviews WHERE candidate_id = ? AND vacancy_id = ?"
    with connected() as db:
        row = db.execute(query, (candidate_id, vacancy_id)).fetchone()
    return {"result": "none" if row is None else row["result"]}


@tool
def suggest_pay(candidate_id: CandidateId, vacancy_id: VacancyId) -> dict[str, Any]:
    """Suggest what to offer: what the candidate expects, within the vacancy's band; the middle if unknown.

    `possible: false` where the expectation is above the band.
    """
    with connected() as db:
        expects = candidate_row(db, candidate_id)["expects"]
        band = vacancy_row(db, vacancy_id)
    low, high = band["low"], band["high"]
    found = {"low": low, "high": high, "expects": expects}
    if expects is not None and expects > high:
        return found | {"possible": False}
    return found | {"possible": True, "euros": (low + high) // 2 if expects is None else max(expects, low)}


@tool(effect="idempotent")
def draft_offer(
    candidate_id: CandidateId, vacancy_id: VacancyId, euros: Euros, reasons: str, idempotency_key: str
) -> dict[str, Any]:
    """Draft an offer, or change the draft that there is; a changed draft has to be reviewed again.

    `drafted: false` if one was sent already. `over_limit`: people decide about more than 100,000 EUR.
    """
    with connected() as db:

        def draft() -> dict[str, Any]:
            candidate_row(db, candidate_id)
            vacancy_row(db, vacancy_id)
            query = "SELECT * FROM offers WHERE candidate_id = ? AND vacancy_id = ?"
            before = db.execute(query, (candidate_id, vacancy_id)).fetchone()
            if before is not None and before["status"] == "sent":
                return {"offer_id": before["id"], "drafted": False, "why": "already_sent"}
            if before is None:
                (count,) = db.execute("SELECT count(*) FROM offers").fetchone()
                offer_id = f"o-{count + 1:03}"
                db.execute(
                    "INSERT INTO offers VALUES (?, ?, ?, ?, ?, 'draft')",
                    (offer_id, candidate_id, vacancy_id, euros, reasons),
                )
            else:
                offer_id = before["id"]
                db.execute(
                    "UPDATE offers SET euros = ?, reasons = ?, status = 'draft' WHERE id = ?",
                    (euros, reasons, offer_id),
                )
            return {
                "offer_id": offer_id,
                "drafted": True,
                "euros": euros,
                "amount": money(euros),
                "over_limit": euros > LIMIT_EUR,
            }

        return once(db, idempotency_key, "draft_offer", draft)


def _what_became_of(idempotency_key: str) -> Any:
    """Return the result of sending, for a turn that died in the middle of it."""
    with connected() as db:
        return done(db, idempotency_key) or NOT_DONE


@tool(effect="reconcilable", reconcile=_what_became_of, approve="human")
def send_offer(offer_id: OfferId, euros: Euros, idempotency_key: str) -> dict[str, Any]:
    """Send an offer, which binds the company; a person approves it first, and sees what you pass.

    Says `sent: false` and why: `not_reviewed`, `changed` (the draft says another sum), `over_limit`,
    `already_sent`.
    """
    with connected() as db:

        def send() -> dict[str, Any]:
            offer = offer_row(db, offer_id)
            why = _speaks_against(offer, euros)
            if why is not None:
                return {"offer_id": offer_id, "sent": False, "why": why}
            mailed = (offer["candidate_id"], f"We offer you {money(euros)} a year ({offer_id}).")
            db.execute("INSERT INTO mails VALUES (?, 'offer', ?)", mailed)
            db.execute("UPDATE offers SET status = 'sent' WHERE id = ?", (offer_id,))
            db.execute(
                "UPDATE applications SET status = 'offered' WHERE candidate_id = ? AND vacancy_id = ?",
                (offer["candidate_id"], offer["vacancy_id"]),
            )
            return {"offer_id": offer_id, "sent": True, "amount": money(euros)}

        return once(db, idempotency_key, "send_offer", send)


def _speaks_against(offer: sqlite3.Row, euros: int) -> str | None:
    reasons = (
        ("already_sent", offer["status"] == "sent"),
        ("changed", offer["euros"] != euros),
        ("over_limit", euros > LIMIT_EUR),
        ("not_reviewed", offer["status"] != "reviewed"),
    )
    return next((why for why, holds in reasons if holds), None)


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "offer",
    description="Drafts offers, has them reviewed, and sends them once a person has approved.",
    instructions=HERE / "prompts" / "offer.md",
    tools=(draft_offer, interview_result, send_offer, suggest_pay),
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
