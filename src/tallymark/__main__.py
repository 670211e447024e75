"""`python -m tallymark` is `tallymark`."""

from tallymark.cli.main import run

if __name__ == "__main__":
    run()
