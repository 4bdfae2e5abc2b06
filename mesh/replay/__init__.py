"""Replay: the live code judges a log again, from a file or the bus. It never writes to the bus."""
