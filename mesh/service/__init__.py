"""What every process of the mesh shows its operators: probes, conditions, logs, spans and metrics.

It does not know the bus, so every other room may use it. Telemetry uses only OpenTelemetry's API, which costs
next to nothing without an SDK in the process. No text that a person or a model wrote goes into it.
"""
