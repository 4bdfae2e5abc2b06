"""Anything that may be asked for: the moves, reports and policies that arbitrary stories are made of."""

import os

from hypothesis import strategies as st

from protocol.wire.commands import Report, Usage
from protocol.wire.config import Policy
from protocol.wire.guardrails import Guardrail, GuardrailWhen
from protocol.wire.handoff import Artifact, Budget, Constraints
from protocol.wire.ids import AgentName
from protocol.wire.moves import Ask, Complete, Escalate, Fail, HandBack, Transfer, UnknownMove
from tests.unit.protocol.worlds import fact

STORIES = int(os.environ.get("MESH_TEST_STORIES", "150"))
"""How many arbitrary stories are played; `make nightly` plays more."""
NAMES = ("a", "b", "c", "d")
agents_ = st.sampled_from([AgentName(name) for name in NAMES])
names = st.one_of(agents_, agents_, agents_, st.sampled_from([AgentName("human"), AgentName("nobody")]))
keys = st.sampled_from(["k", "l", "text", "hidden"])
ALIKE = (1, True, 1.0, "1"), (0, False, -0.0, None), ([1], [True]), ({"x": 1, "y": 2}, {"y": 2, "x": 1})
"""Values that Python, or somebody in a hurry, takes for one another; the last two are one JSON value."""
values = st.sampled_from([value for alike in ALIKE for value in alike])
plain = st.builds(fact, keys, values)
labelled = st.builds(fact, keys, values, st.just("pii"))
facts = st.lists(plain | labelled, max_size=2, unique_by=lambda item: item.key).map(tuple)
artifacts = st.lists(
    st.sampled_from([Artifact(name="x", uri="s3://x"), Artifact(name="y", uri="s3://y", labels=("pii",))]),
    max_size=2,
    unique_by=lambda item: item.name,
).map(tuple)
amounts = st.none() | st.integers(0, 120)
budgets = st.builds(Budget, tokens=amounts, nano_dollars=amounts)
actions = st.none() | st.lists(st.sampled_from(["look", "pay"]), unique=True).map(tuple)
constraints = st.builds(
    Constraints,
    max_resolution_time_s=st.none() | st.sampled_from([0.0, 5.0, 1000.0]),
    allowed_actions=actions,
    budget=st.none() | budgets,
    must_carry=st.lists(keys, max_size=1, unique=True).map(tuple),
)
drops = st.lists(keys, max_size=2).map(tuple)
limits = st.just(Constraints()) | constraints
intents = st.sampled_from([None, None, "bill", "sing"])
hand_ons = st.one_of(
    st.builds(
        Transfer,
        to_agent=agents_,
        summary=st.just("please"),
        intent=intents,
        facts=facts,
        artifacts=artifacts,
        return_to=st.none() | agents_,
        no_return=st.sampled_from([False, False, True]),
    ),
    st.builds(
        Transfer,
        to_agent=agents_,
        summary=st.just("yours"),
        facts=facts,
        drop=drops,
        constraints=st.sampled_from([Constraints(), Constraints(max_resolution_time_s=5.0)]),
    ),
    st.builds(HandBack, summary=st.just("found"), facts=facts, artifacts=artifacts, drop=drops),
)
"""What is often admitted, so that stories go on for a while."""
moves = st.one_of(
    st.builds(
        Transfer,
        to_agent=names,
        summary=st.just("please"),
        intent=intents,
        facts=facts,
        artifacts=artifacts,
        drop=drops,
        constraints=limits,
        return_to=st.none() | names,
        no_return=st.booleans(),
    ),
    st.builds(Transfer, to_agent=names, summary=st.just("please"), facts=facts),
    st.builds(
        HandBack,
        summary=st.just("found"),
        to_agent=st.none() | names,
        facts=facts,
        artifacts=artifacts,
        drop=drops,
    ),
    st.builds(
        Ask,
        to_agent=st.sampled_from([AgentName("c1"), AgentName("human"), AgentName("a")]),
        question=st.just("which?"),
        expires_s=st.none() | st.sampled_from([0.0, 10.0, 1e6]),
    ),
    st.builds(Escalate, summary=st.just("help"), facts=facts),
    st.builds(Complete, answer=st.sampled_from(["done", None])),
    st.builds(Fail, reason=st.just("no")),
    st.builds(UnknownMove, name=st.just("delegate")),
)
reports = st.builds(
    Report,
    usage=st.builds(Usage, tokens=st.integers(0, 60), nano_dollars=st.integers(0, 60)),
    actions=st.sampled_from([(), (), (), ("look",), ("look", "pay")]),
)
_C, _D, _CLIENT = AgentName("c"), AgentName("d"), AgentName("c1")
GUARDRAILS = (
    Guardrail(
        name="no-yours",
        looks_at=("summary",),
        forbid_pattern="^(yours|help)$",
        when=GuardrailWhen(moves=("transfer", "escalate")),
    ),
    Guardrail(name="a-digit", looks_at=("facts.L",), pattern="^[01]$"),
    Guardrail(
        name="short", looks_at=("facts", "question"), max_bytes=6, when=GuardrailWhen(to=(_C, _CLIENT))
    ),
    Guardrail(
        name="no-true",
        looks_at=("facts.hidden", "facts.k"),
        forbid_pattern="^true$",
        when=GuardrailWhen(moves=("submit", "transfer")),
    ),
    Guardrail(name="complete", looks_at=("answer", "facts.hidden"), required=True),
    Guardrail(
        name="no-pii",
        looks_at=("facts", "labels.pii", "summary"),
        forbid_labels=("pii", "x"),
        when=GuardrailWhen(to=(_D,)),
    ),
)
some_guardrails = st.sampled_from([(), (), (), *((each,) for each in GUARDRAILS), GUARDRAILS[:2]])
policies = st.builds(
    Policy,
    guardrails=some_guardrails,
    max_depth=st.sampled_from([1, 2, 3, 5, 7, 9]),
    max_refusals=st.integers(0, 5),
    max_retries=st.integers(0, 3),
    max_asks=st.integers(0, 2),
    max_escalations=st.integers(0, 5),
    max_handoff_bytes=st.sampled_from([65_536, 65_536, 65_536, 500]),
    deadline_s=st.sampled_from([86_400.0, 86_400.0, 86_400.0, 30.0]),
    turn_timeout_s=st.sampled_from([900.0, 20.0, 1e-6]),
    unattended_after_s=st.sampled_from([None, 50.0, 1e-6]),
    escalation_sla_s=st.sampled_from([None, 40.0, 1e-6]),
    human_deadline_s=st.sampled_from([None, None, 50.0, 2_000.0, 1e-6]),
    retry_backoff_s=st.sampled_from([0.0, 1.0]),
    budget=st.none() | budgets,
    tell_client=st.sampled_from([(), ("usage", "path")]),
)
