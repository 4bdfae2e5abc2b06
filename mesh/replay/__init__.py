"""Replay: a log judged again by the live code, from a file or a request. It never writes to the bus."""
