"""What is counted and timed. Labels are names of agents, models, rules and codes: a small, known number."""

from opentelemetry import metrics

from mesh.telemetry import names

_meter = metrics.get_meter(names.SCOPE)

handoffs = _meter.create_counter(
    names.HANDOFFS, unit="{handoff}", description="Proposals by verdict and rule"
)
turn_duration = _meter.create_histogram(
    names.TURN_DURATION, unit="s", description="From a round's delivery to its stored proposal"
)
queue_time = _meter.create_histogram(
    names.QUEUE_TIME, unit="s", description="From an event in an inbox to its first delivery"
)
tokens = _meter.create_counter(names.TOKENS, unit="{token}", description="Tokens by agent, model and kind")
cost = _meter.create_counter(names.COST, unit="USD", description="Cost of model calls by agent and model")
open_requests = _meter.create_up_down_counter(
    names.OPEN_REQUESTS, unit="{request}", description="Opened less ended; summed over all guards"
)
ended_requests = _meter.create_counter(
    names.ENDED_REQUESTS, unit="{request}", description="Requests by their end"
)
dead_letters = _meter.create_counter(names.DEAD_LETTERS, unit="{message}", description="Dead letters by code")
guard_lag = _meter.create_histogram(
    names.GUARD_LAG, unit="s", description="From a message stored to its decision"
)
