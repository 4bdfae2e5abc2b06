"""What screening can do: hold a candidate's record against what a vacancy needs.

Nothing here says who a candidate is: skills are those that a vacancy of the company asks for, word for
word, and a number of years.
"""

from typing import Any

from agents.records import the_row
from agents.recruiting.candidates import candidate_row
from agents.recruiting.common import CandidateId, VacancyId
from agents.recruiting.database import connected
from mesh.agent import tool


@tool
def match_profile(candidate_id: CandidateId, vacancy_id: VacancyId) -> dict[str, Any]:
    """Hold skills and years against what a vacancy needs: a verdict, and reasons that are about the work.

    `fits`; `lacks_skills`; `short_of_years`; `incomplete`: `missing` (skills or years) is not on record.
    """
    with connected() as db:
        years = candidate_row(db, candidate_id)["years"]
        missing = f"There is no vacancy {vacancy_id}."
        vacancy = the_row(db, missing, "SELECT * FROM vacancies WHERE id = ?", vacancy_id)
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
