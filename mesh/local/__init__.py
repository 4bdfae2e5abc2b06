"""A whole mesh on this machine: its own server, guards and agents as child processes."""
