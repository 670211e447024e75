"""Benchmarks: what we promise about speed, measured against a yardstick in the same run.

A benchmark is a function in a module of this package, marked with `@benchmark(name, summary)`
(registry.py), that takes a Context and returns rows (row.py). The harness interleaves what it compares,
because the machine's mood changes by the minute; it never quotes a figure of another run.
"""
