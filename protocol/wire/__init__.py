"""Everything on the bus: ids, subjects, the handoff, commands, events, documents, and how to read them."""
