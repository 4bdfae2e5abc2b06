"""The fleet file, and the layout of the bus that follows from it."""
