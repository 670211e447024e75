"""Scenarios, faults, history, verdicts.
"""
