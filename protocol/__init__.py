"""The wire contract and the pure domain of Handoff Mesh: no I/O, clock, randomness or logging."""
