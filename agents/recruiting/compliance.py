"""compliance: reviews offers and rejections, and hands back those with a fault.

Accepts the intents `review_offer` (with the fact `offer_id`) and `review_rejection` (with `candidate_id`,
`vacancy_id` and `reasons`). It sees pay, and never a person's identity. Work that came with `no_return` is
not handed back: it settles that, or gives it to a person.
"""

import re
import sqlite3
from pathlib import Path
from typing import Any

from agents.records import once
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
from mesh.agent import tool
from mesh.model import WORK, ClaudeAgent


def _says(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _ground(db: sqlite3.Connection, reasons: str) -> tuple[str, str] | None:
    """Return the first word of the reasons that is not about the work, and what it is about."""
    rows = db.execute("SELECT word, ground FROM grounds ORDER BY word").fetchall()
    return next(((row["word"], row["ground"]) for row in rows if _says(reasons, row["word"])), None)


# --- rejections -------------------------------------------------------------------------------------


@tool
def check_rejection(candidate_id: CandidateId, vacancy_id: VacancyId, reasons: str = "") -> dict[str, Any]:
    """Review the reasons for a rejection: a verdict, and the finding in words.

    `sound`; `no_reasons`: none are given; `discriminating`: they are not about the work;
    `contradicted`: they name as lacking what is on record.
    """
    with connected() as db:
        title = vacancy_row(db, vacancy_id)["title"]
        candidate_row(db, candidate_id)
        ground = _ground(db, reasons)
        query = "SELECT skill FROM candidate_skills WHERE candidate_id = ? ORDER BY skill"
        has = [row["skill"] for row in db.execute(query, (candidate_id,))]
    found = {"title": title}
    if not reasons.strip():
        return found | {"verdict": "no_reasons", "finding": "A rejection needs reasons."}
    if ground is not None:
        word, about = ground
        return found | {"verdict": "discriminating", "finding": f"{word!r} is about {about}: {reasons}"}
    named = [skill for skill in has if _says(reasons, skill)]
    if named:
        return found | {"verdict": "contradicted", "finding": f"On record: {', '.join(named)}"}
    return found | {"verdict": "sound", "finding": "The reasons are about the work."}


@tool(effect="idempotent")
def send_rejection(
    candidate_id: CandidateId, vacancy_id: VacancyId, reasons: str, idempotency_key: str
) -> dict[str, Any]:
    """Reject an application and write to the candidate, with the reasons."""
    with connected() as db:

        def reject() -> dict[str, Any]:
            candidate_row(db, candidate_id)
            title = vacancy_row(db, vacancy_id)["title"]
            db.execute(
                "UPDATE applications SET status = 'rejected' WHERE candidate_id = ? AND vacancy_id = ?",
                (candidate_id, vacancy_id),
            )
            db.execute("INSERT INTO mails VALUES (?, 'rejection', ?)", (candidate_id, reasons))
            return {"rejected": True, "title": title, "reasons": reasons}

        return once(db, idempotency_key, "send_rejection", reject)


# --- offers -----------------------------------------------------------------------------------------


@tool
def check_offer(offer_id: OfferId) -> dict[str, Any]:
    """Review a draft: a verdict, and the finding in words.

    `clear`; `no_reasons`; `discriminating`: the reasons are not about the work; `outside_band`;
    `unequal`: less than anybody in the same work is paid, which `at_least` is.
    """
    with connected() as db:
        offer = offer_row(db, offer_id)
        band = vacancy_row(db, offer["vacancy_id"])
        query = "SELECT min(euros) FROM colleagues WHERE vacancy_id = ?"
        (least,) = db.execute(query, (offer["vacancy_id"],)).fetchone()
        ground = _ground(db, offer["reasons"])
    found = {"offer_id": offer_id, "euros": offer["euros"], "amount": money(offer["euros"])}
    if not offer["reasons"].strip():
        return found | {"verdict": "no_reasons", "finding": "An offer needs reasons."}
    if ground is not None:
        return found | {"verdict": "discriminating", "finding": f"{ground[0]!r} is about {ground[1]}"}
    if not band["low"] <= offer["euros"] <= band["high"]:
        finding = f"Outside the band of {money(band['low'])} to {money(band['high'])}."
        return found | {"verdict": "outside_band", "finding": finding}
    if least is not None and offer["euros"] < least:
        finding = "Nobody in the same work is paid so little."
        return found | {"verdict": "unequal", "finding": finding, "at_least": least}
    return found | {"verdict": "clear", "finding": "Within the band, and equal pay for equal work."}


@tool(effect="idempotent")
def seal_offer(offer_id: OfferId, euros: Euros, idempotency_key: str) -> dict[str, Any]:
    """Mark a draft as reviewed, with the sum that was. A draft that is changed afterwards loses the seal.

    Says `sealed: false` and why: `already_sent`, or `changed` where the draft says another sum by now.
    """
    with connected() as db:

        def seal() -> dict[str, Any]:
            offer = offer_row(db, offer_id)
            if offer["status"] == "sent":
                return {"offer_id": offer_id, "sealed": False, "why": "already_sent"}
            if offer["euros"] != euros:
                return {"offer_id": offer_id, "sealed": False, "why": "changed"}
            db.execute("UPDATE offers SET status = 'reviewed' WHERE id = ?", (offer_id,))
            return {"offer_id": offer_id, "sealed": True}

        return once(db, idempotency_key, "seal_offer", seal)


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "compliance",
    description="Reviews offers and rejections for discrimination, unequal pay and missing reasons.",
    instructions=HERE / "prompts" / "compliance.md",
    tools=(check_offer, check_rejection, seal_offer, send_rejection),
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
