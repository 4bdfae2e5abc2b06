"""What the agents and tools of this fleet have in common: the shapes of ids, sums of money, and labels."""

from typing import Annotated

from pydantic import Field

CandidateId = Annotated[str, Field(pattern=r"^k-\d{4}$", description="Like k-1001.")]
VacancyId = Annotated[str, Field(pattern=r"^v-\d{3}$", description="Like v-101.")]
SlotId = Annotated[str, Field(pattern=r"^sl-\d{3}$", description="Like sl-101.")]
Euros = Annotated[int, Field(gt=0, description="Whole euros a year.")]
OfferId = Annotated[str, Field(pattern=r"^o-\d{3}$", description="Like o-001.")]

PERSON, PAY = "pii", "salary"
"""Labels: who somebody is; what somebody earns or asks for."""

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
"""By fact key, whatever a model says. An applicant's own words name whoever and whatever they please."""


def money(euros: int) -> str:
    """Return a yearly salary for people: `62,000 EUR`."""
    return f"{euros:,} EUR"
