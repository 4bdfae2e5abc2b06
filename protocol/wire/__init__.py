"""What lies on the bus: ids, subjects, the handoff, commands, events, documents, and how they are read."""
