"""Mutants of the rules: small faults, put into the domain one at a time, that a test has to notice."""
