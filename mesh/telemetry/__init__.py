"""Traces and metrics: the names and places of spans (`tracing`), and what exports them (`export`)."""
