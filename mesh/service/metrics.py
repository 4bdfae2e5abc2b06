"""What is counted and timed. Labels are names of agents, models, rules and codes: a small, known number."""

from opentelemetry import metrics

from mesh.service import names

_meter = metrics.get_meter(names.SCOPE)
_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Bounds of the histograms' buckets: from a decision's milliseconds to a turn's longest time."""

handoffs = _meter.create_counter(
    names.HANDOFFS, unit="{handoff}", description="Proposals by verdict and rule"
)
turn_duration = _meter.create_histogram(
    names.TURN_DURATION,
    unit="s",
    description="From a round's delivery to its stored proposal",
    explicit_bucket_boundaries_advisory=_SECONDS,
)
queue_time = _meter.create_histogram(
    names.QUEUE_TIME,
    unit="s",
    description="From an event in an inbox to its first delivery",
    explicit_bucket_boundaries_advisory=_SECONDS,
)
tokens = _meter.create_counter(names.TOKENS, unit="{token}", description="Tokens by agent, model and kind")
cost = _meter.create_counter(names.COST, unit="USD", description="Cost of model calls by agent and model")
open_requests = _meter.create_up_down_counter(
    names.OPEN_REQUESTS,
    unit="{request}",
    description="Requests opened less requests ended, as this process wrote them",
)
opened_requests = _meter.create_counter(
    names.OPENED_REQUESTS, unit="{request}", description="Requests that began"
)
ended_requests = _meter.create_counter(
    names.ENDED_REQUESTS, unit="{request}", description="Requests by their end"
)
dead_letters = _meter.create_counter(names.DEAD_LETTERS, unit="{message}", description="Dead letters by code")
dropped_deliveries = _meter.create_counter(
    names.DROPPED_DELIVERIES,
    unit="{message}",
    description="Messages in a service's inbox that its consumer did not send",
)
guard_lag = _meter.create_histogram(
    names.GUARD_LAG,
    unit="s",
    description="From a message stored to its decision",
    explicit_bucket_boundaries_advisory=_SECONDS,
)
