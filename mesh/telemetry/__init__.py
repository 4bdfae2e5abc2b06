"""Traces and metrics, by OpenTelemetry's API alone: without an SDK in the process they cost next to nothing.

No text that a person or a model wrote and no value of a fact goes into them: names, ids, counts, codes.
"""
