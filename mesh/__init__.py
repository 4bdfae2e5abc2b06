"""Handoff Mesh: event-sourced, guarded handoffs between LLM agents on NATS JetStream."""
