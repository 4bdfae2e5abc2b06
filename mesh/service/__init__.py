"""What every process of the mesh shows its operators: probes, conditions, logs, spans and metrics.

It knows no bus: every other room may use it. Telemetry goes through OpenTelemetry's API alone, which costs
next to nothing without an SDK in the process. No text that a person or a model wrote goes into it.
"""
