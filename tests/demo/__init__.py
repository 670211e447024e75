"""The demo verb, as a user runs it."""
