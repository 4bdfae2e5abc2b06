"""Mending code: readers look for the cause of a failing test in a git repository, one writer changes it."""
