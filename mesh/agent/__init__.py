"""Agents as services: what a turn is to its code, and the runtime that takes turns off the inbox."""
