"""python -m tests.torture relay | inbox | journey --minutes N --seed S --json

Progress goes to stderr. Exit 0: nothing missing, doubled, reordered or stuck; 1: something was. The processes' logs are
kept, in the folder that is named, when something was or when one of them died by a signal that nobody sent it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.torture.ground import open_cluster
from tests.torture.journey import JourneyPlan, JourneyResult, torture_journey
from tests.torture.relay import Plan, Result, torture


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("station", choices=["relay", "inbox", "journey"], help="what is tortured")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="the same seed strikes in the same order")
    parser.add_argument("--relays", type=int, default=3)
    parser.add_argument("--inboxes", type=int, default=3)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument(
        "--mode", choices=["inline", "deferred"], default="inline", help="how the inbox applies"
    )
    parser.add_argument("--spare", action="append", default=[], choices=["broker", "postgres"])
    parser.add_argument("--home", type=Path, help="the local cluster to use; it is left running")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    seconds = options.minutes * 60
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr, flush=True)

    # Whoever ends us must not leave relays behind: let every `finally` have its turn.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"seed {seed}")
    with open_cluster(options.home) as cluster:
        result: Result | JourneyResult
        if options.station == "relay":
            plan = Plan(seconds, seed, options.relays, options.writers, spare=options.spare)
            result = torture(cluster, plan, say)
        else:
            journey = JourneyPlan(
                seconds,
                seed,
                with_relay=options.station == "journey",
                mode=options.mode,
                relays=options.relays,
                inboxes=options.inboxes,
                writers=options.writers,
                spare=options.spare,
            )
            result = torture_journey(cluster, journey, say)
    found = result.as_json()
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:16} {value}")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
