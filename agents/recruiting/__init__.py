"""Recruiting of a company: intake, screening, scheduling, offer and compliance over one database."""
