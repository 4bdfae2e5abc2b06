"""Durable peers beside the mesh: the same chain of five agents, the same promise, in the same rounds.

`python -m bench.peers --install` fetches the peers, `python -m bench.peers` measures. Each peer gets what
helps it, and its module says what it leaves out.
"""
