"""A whole mesh on this machine: a server of our own, guards and agents as child processes."""
