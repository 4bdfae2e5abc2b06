"""Support of an internet provider: triage, billing and technical over one small database, people behind them."""
