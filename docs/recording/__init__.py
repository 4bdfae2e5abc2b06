"""Pictures of a terminal, recorded: real processes, a real terminal, nothing drawn by hand."""
