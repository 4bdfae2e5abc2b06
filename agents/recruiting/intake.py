"""intake: reads what applicants write, finds or creates their record, and gives the work on.

Accepts anything. Gives applications to screening, new dates to scheduling and offers after an interview to
offer. Screening and compliance never learn who applies: facts that identify a person carry the label `pii`,
and the pay that they ask for `salary`. The labels hold for every giver, and no model can change them.

What the tools return about a person is personal data (`pii`), and what a person asks for is `salary`. Both
belong in the facts of a handoff, labelled, and never into its summary.
"""

import sqlite3
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from agents.records import once, the_row
from agents.recruiting import (
    LABELS,
    CandidateId,
    Euros,
    VacancyId,
    candidate_row,
    connected,
    find_vacancy,
)
from mesh.agent import ToolError, tool
from mesh.model import ROUTING, ClaudeAgent


def _listed(said: Any) -> Any:
    """Return `Python, SQL and Figma` as three skills; a list stays a list."""
    if not isinstance(said, str):
        return said
    return [each.strip() for each in said.replace(" and ", ",").split(",") if each.strip()]


def _digits(said: Any) -> Any:
    """Return `62,000 EUR` as `62000`."""
    return "".join(each for each in said if each.isdigit()) if isinstance(said, str) else said


Skills = Annotated[list[str], BeforeValidator(_listed)]
Written = Annotated[Euros, BeforeValidator(_digits)]
Years = Annotated[int, Field(ge=0, le=60)]
Phone = Annotated[str, BeforeValidator(str.strip), Field(pattern=r"^[\d +()-]{6,24}$")]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="Like 1990-12-31.")]

# --- vacancies --------------------------------------------------------------------------------------


@tool
def list_vacancies() -> dict[str, Any]:
    """List the titles of all open vacancies."""
    with connected() as db:
        rows = db.execute("SELECT id, title FROM vacancies WHERE status = 'open' ORDER BY id").fetchall()
    return {"open": ", ".join(f"{row['title']} ({row['id']})" for row in rows)}


# --- people -----------------------------------------------------------------------------------------


def _candidate(row: sqlite3.Row) -> dict[str, Any]:
    """Return a record for intake, without its empty fields."""
    known = {
        "candidate_id": row["id"],
        "name": row["name"],
        "email": row["email"],
        "phone": row["phone"],
        "birth_date": row["birth_date"],
        "years": row["years"],
        "salary_expectation": row["expects"],
    }
    return {key: value for key, value in known.items() if value is not None}


@tool
def find_candidate(email: str | None = None, candidate_id: CandidateId | None = None) -> dict[str, Any]:
    """Find a candidate's record by e-mail address or by id. All but the id and the years is labelled."""
    if (email is None) == (candidate_id is None):
        raise ToolError("Give either an e-mail address or a candidate's id.")
    with connected() as db:
        query = "SELECT * FROM candidates WHERE email = ? OR id = ?"
        missing = f"There is no candidate {email or candidate_id}."
        return _candidate(the_row(db, missing, query, email, candidate_id))


@tool(effect="idempotent")
def register_candidate(name: str, email: str, idempotency_key: str) -> dict[str, Any]:
    """Create a candidate's record, or find the one with that address. Details are noted afterwards."""
    with connected() as db:

        def register() -> dict[str, Any]:
            (number,) = db.execute(
                "SELECT max(CAST(substr(id, 3) AS INTEGER)) + 1 FROM candidates"
            ).fetchone()
            db.execute(
                "INSERT INTO candidates (id, name, email) VALUES (?, ?, ?) ON CONFLICT (email) DO NOTHING",
                (f"k-{number:04}", name.strip(), email),
            )
            row = db.execute("SELECT * FROM candidates WHERE email = ?", (email,)).fetchone()
            return {"candidate_id": row["id"], "created": row["id"] == f"k-{number:04}"}

        return once(db, idempotency_key, "register_candidate", register)


@tool(effect="idempotent")
def note_details(
    candidate_id: CandidateId,
    idempotency_key: str,
    phone: Phone | None = None,
    birth_date: Day | None = None,
    years: Years | None = None,
    salary_expectation: Written | None = None,
    skills: Skills | None = None,
) -> dict[str, Any]:
    """Note what a candidate says of themselves. `not_kept`: skills that no vacancy here asks for."""
    columns = {"phone": phone, "birth_date": birth_date, "years": years, "expects": salary_expectation}
    with connected() as db:

        def note() -> dict[str, Any]:
            candidate_row(db, candidate_id)
            for column, value in columns.items():
                if value is not None:
                    db.execute(f"UPDATE candidates SET {column} = ? WHERE id = ?", (value, candidate_id))
            known = {row["skill"] for row in db.execute("SELECT skill FROM skills")}
            given = [skill.lower() for skill in skills or ()]
            for skill in known.intersection(given):
                db.execute("INSERT OR IGNORE INTO candidate_skills VALUES (?, ?)", (candidate_id, skill))
            return {
                "candidate_id": candidate_id,
                "not_kept": [skill for skill in given if skill not in known],
            }

        return once(db, idempotency_key, "note_details", note)


@tool
def read_papers(candidate_id: CandidateId) -> dict[str, Any]:
    """Look into the papers of earlier applications: years of experience; null if they do not say."""
    with connected() as db:
        query = "SELECT years FROM papers WHERE candidate_id = ?"
        row = the_row(db, f"There are no papers of {candidate_id}.", query, candidate_id)
    return {"years": row["years"]}


# --- applications -----------------------------------------------------------------------------------


@tool(effect="idempotent")
def apply_for(candidate_id: CandidateId, vacancy_id: VacancyId, idempotency_key: str) -> dict[str, Any]:
    """Take an application in, once all details are noted. Returns the candidate's whole record."""
    with connected() as db:

        def apply() -> dict[str, Any]:
            row = candidate_row(db, candidate_id)
            query = "SELECT id FROM vacancies WHERE id = ? AND status = 'open'"
            the_row(db, f"There is no open vacancy {vacancy_id}.", query, vacancy_id)
            db.execute(
                "INSERT OR IGNORE INTO applications (candidate_id, vacancy_id) VALUES (?, ?)",
                (candidate_id, vacancy_id),
            )
            return _candidate(row) | {"vacancy_id": vacancy_id}

        return once(db, idempotency_key, "apply_for", apply)


@tool
def list_applications(candidate_id: CandidateId) -> list[dict[str, Any]]:
    """List a candidate's applications; status: received, invited, rejected or offered."""
    query = """
        SELECT a.vacancy_id, v.title, a.status FROM applications a JOIN vacancies v ON v.id = a.vacancy_id
        WHERE a.candidate_id = ? ORDER BY a.vacancy_id
    """
    with connected() as db:
        return [dict(row) for row in db.execute(query, (candidate_id,))]


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "intake",
    description="Reads applications, keeps the candidates' records, answers questions about vacancies.",
    instructions=HERE / "prompts" / "intake.md",
    tools=(
        apply_for,
        find_candidate,
        find_vacancy,
        list_applications,
        list_vacancies,
        note_details,
        read_papers,
        register_candidate,
    ),
    model=ROUTING,
    script=HERE / "rules.toml",
    labels=LABELS,
)
