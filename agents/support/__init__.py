"""Support of an internet provider: triage, billing and technical over one database, people behind them."""
