"""Scenarios, faults, history, verdicts."""
