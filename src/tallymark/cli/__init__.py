"""The command line: one file per verb; main.py gathers them."""
