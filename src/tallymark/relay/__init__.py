"""The relay: lease lanes, read ranges commit-safely, publish each batch once, mark it, resolve what is in doubt.

Knows its store and its publisher only by the ports in ports.py.
"""
