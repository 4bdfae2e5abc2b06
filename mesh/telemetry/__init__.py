"""Traces and metrics: the names and places of spans (`tracing`), and what sends them out (`export`)."""
