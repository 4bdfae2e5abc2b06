"""Models behind a port: what a model is shown, what it may answer, and the loop between it and the tools."""
