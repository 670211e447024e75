"""Handlers and the three schemes for applying once; retry, parking, dead letters."""
