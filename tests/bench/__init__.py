"""The harness: statistics with literal inputs, and processes that are really measured."""
