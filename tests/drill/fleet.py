"""The drill's own fleet: three agents of whom one may not see everything, one that is shut, and people."""

from mesh.fleet.file import FleetFile, parse_fleet
from protocol.wire.config import GUARD_LEASE_S, LEASE_S

SHUT = "shut"
"""The agent whose breaker is open."""
RARE = "rare"
"""The intent that only the drill's own agent lists."""
_TEXT = """
name = "drill"
entry = "front"

[agents.front]
module = "tests.drill.agents:front"
description = "Does what the script says."
clearance = ["pii"]
intents = ["lead"]

[agents.front.carries.back.properties.shelf]   # what it hands to `back` under this key is a number
type = "integer"

[agents.back]   # no clearance: what is labelled is carried past it
module = "tests.drill.agents:back"
description = "Does what the script says, and is not shown everything."
to = ["front", "vault"]
intents = ["read"]

[agents.vault]
module = "tests.drill.agents:vault"
description = "Does what the script says."
clearance = ["pii"]
intents = ["store", "read"]

[agents.shut]    # nobody serves it, and its breaker is open
description = "Is given nothing."
intents = []

[agents.claimant]   # the drill plays it: it claims what it may not have, and when it is hard
description = "Claims late, and twice."
intents = ["read", "rare"]

[clients.app]
[operators.ops]
[viewers.audit]
[human]

[policies.default]   # a drill breaks turns: it must not run out of rounds by that
max_refusals = 4
max_retries = 4
max_asks = 5
max_escalations = 20
retry_backoff_s = 0.2
retry_backoff_max_s = 2.0

[policies.tight]   # limits that a story comes up against
max_refusals = 4
max_retries = 4
max_escalations = 20
retry_backoff_s = 0.2
retry_backoff_max_s = 2.0
max_depth = 2
max_asks = 1
max_handoff_bytes = 8192

[[policies.tight.guardrails]]
name = "no-codeword"
looks_at = ["facts", "summary"]
forbid_pattern = "codeword-[0-9]+"

[policies.strict]   # a refusal is put to people at once
max_refusals = 0
max_retries = 4
max_escalations = 20
retry_backoff_s = 0.2
retry_backoff_max_s = 2.0

[policies.tree]   # leads delegate, and join what comes of it
topology = "supervised"
max_refusals = 4
max_retries = 4
max_asks = 5
max_escalations = 20
retry_backoff_s = 0.2
retry_backoff_max_s = 2.0

[policies.low-tree]   # the same, with limits that a story comes up against
topology = "supervised"
max_levels = 2
max_open_tasks = 2
max_revisions = 0
max_refusals = 12
max_retries = 4
max_escalations = 20
retry_backoff_s = 0.2
retry_backoff_max_s = 2.0

[policies.swarm]   # what is offered may have to wait for a process that was killed
topology = "swarm"
max_refusals = 4
max_retries = 4
max_escalations = 20
retry_backoff_s = 0.2
retry_backoff_max_s = 2.0
claim_within_s = 60.0

[policies.brief-swarm]   # what is offered is soon over, unless its clock stands
topology = "swarm"
max_refusals = 4
max_retries = 4
max_escalations = 20
retry_backoff_s = 0.2
retry_backoff_max_s = 2.0
claim_within_s = 3.0

[labels]   # whoever brings it
phone = ["pii"]

[breaker]   # scripted failures are no sign of a broken agent
failures = 0

[lease]
agent_s = {lease_s}
guard_s = {guard_lease_s}

[guard]
lane = {lane}
"""


def drill_fleet(
    lease_s: float = LEASE_S, guard_lease_s: float = GUARD_LEASE_S, *, lane: bool = True
) -> FleetFile:
    """Return the fleet. Raises FleetFileError for leases that no fleet may have."""
    return parse_fleet(
        _TEXT.format(lease_s=lease_s, guard_lease_s=guard_lease_s, lane=str(lane).lower()),
        "the drill's fleet",
    )
