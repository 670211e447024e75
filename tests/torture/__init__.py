"""Torture: random kills under load, then a comparison that trusts nothing of the code under test.

python -m tests.torture relay --minutes 10 --seed 1 --json
"""
