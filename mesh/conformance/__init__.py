"""`mesh check-agent`: an agent in any language, tried over the bus alone on a scratch mesh.

The agent under test is a process; its code does what the fact `do` of a request names (`docs/wire/agent.md`).
A real guard decides, and everything that the agent publishes on the bus is recorded.
"""
