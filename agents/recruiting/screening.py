"""screening: judges applications by skills and years alone.

Accepts the intent `screen` with the facts `candidate_id` and `vacancy_id`. It has no clearance: it works on
ids and never learns who applies. Hands back where something is missing; every rejection goes to compliance.

Skills are those that a vacancy of the company asks for, word for word; years are a number.
"""

from pathlib import Path
from typing import Any

from agents.recruiting import LABELS, CandidateId, VacancyId, candidate_row, connected, vacancy_row
from mesh.agent import tool
from mesh.model import WORK, ClaudeAgent


@tool
def match_profile(candidate_id: CandidateId, vacancy_id: VacancyId) -> dict[str, Any]:
    """Hold skills and years against what a vacancy needs: a verdict, and reasons that are about the work.

    `fits`; `lacks_skills`; `short_of_years`; `incomplete`: `missing` (skills or years) is not on record.
    """
    with connected() as db:
        years = candidate_row(db, candidate_id)["years"]
        vacancy = vacancy_row(db, vacancy_id)
        of = "SELECT skill FROM candidate_skills WHERE candidate_id = ? ORDER BY skill"
        has = [row["skill"] for row in db.execute(of, (candidate_id,))]
        to = "SELECT skill FROM needs WHERE vacancy_id = ? ORDER BY skill"
        needs = [row["skill"] for row in db.execute(to, (vacancy_id,))]
    found = {"title": vacancy["title"], "skills": has, "needs": needs}
    found |= {"years": years, "min_years": vacancy["min_years"]}
    lacks = [skill for skill in needs if skill not in has]
    if not has:
        return found | {"verdict": "incomplete", "missing": "skills"}
    if lacks:
        reasons = f"Needed for the work and not found: {', '.join(lacks)}."
        return found | {"verdict": "lacks_skills", "reasons": reasons}
    if years is None:
        return found | {"verdict": "incomplete", "missing": "years"}
    if years < vacancy["min_years"]:
        reasons = f"{years} years of experience, of at least {vacancy['min_years']}."
        return found | {"verdict": "short_of_years", "reasons": reasons}
    return found | {"verdict": "fits", "reasons": f"Has {', '.join(needs)} and {years} years."}


# --- the agent -------------------------------------------------------------------------------------

HERE = Path(__file__).parent

agent = ClaudeAgent(
    "screening",
    description="Judges by skills and years whether a candidate fits. Knows candidates by id only.",
    instructions=HERE / "prompts" / "screening.md",
    tools=(match_profile,),
    model=WORK,
    script=HERE / "rules.toml",
    labels=LABELS,
)
