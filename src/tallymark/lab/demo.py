"""`tallymark demo` from its first broker to its certificate. Whatever ends it, nothing is left running unless asked for.

After a run its data stay in its home, stopped, for a look around: the next run takes their place. Ctrl-C deletes them;
an error keeps them, with the logs.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tallymark.errors import Problem, UsageError
from tallymark.lab import comparison, faults, kafkalook, leaving
from tallymark.lab.bank import bank, naive_bank
from tallymark.lab.board import Board
from tallymark.lab.faults import Scene
from tallymark.lab.outcome import Certified, Outcome, Struck, Tallied
from tallymark.lab.programme import programme
from tallymark.lab.services import must, until
from tallymark.lab.soundings import Sampler, Soundings
from tallymark.lab.stage import PARTITIONS, SPARK, Stage, Wish
from tallymark.lab.traffic import Traffic
from tallymark.local.cluster import LocalCluster
from tallymark.local.shell import put_on_path
from tallymark.store.postgres.findings import Findings

_SETTLE_S = 180.0
_TALLY_S = 300.0
_SMALLEST_WINDOW = 100
_KEPT = ("relay-1", "relay-2", "ledger-1", "spark")


def default_home() -> Path:
    """One per user, and bounded: a new run takes the place of the last."""
    return Path(tempfile.gettempdir()) / f"tallymark-demo-{os.getuid()}"


def fresh_home(home: Path) -> Path:
    """Where nothing runs and nothing is left of an earlier run."""
    if home.is_symlink() or (home.exists() and home.stat().st_uid != os.getuid()):
        raise UsageError(f"{home} is not ours", remedy="set TMPDIR to a folder of your own")
    if leaving.left(home) or any(server.is_alive() for server in LocalCluster(home).processes):
        raise UsageError(f"a demo still runs in {home}", remedy=f"end it first: sh {home / 'stop.sh'}")
    shutil.rmtree(home, ignore_errors=True)
    return home


def run(home: Path, wish: Wish, board: Board) -> Outcome:
    """All of it."""
    stage = Stage(home, wish)
    with taken_down(stage, board):
        stage.open()
        board.phase("starting three brokers and PostgreSQL")
        board.told(stage.up(board.note))
        board.phase("making databases and topics")
        board.told(stage.furnish())
        soundings = Soundings(stage.urls)
        with Sampler(stage.urls) as board.sampler:
            scene = _play(stage, soundings, board)
            _settle(stage, soundings, board)
            outcome = _judge(stage, soundings, scene, board)
        soundings.close()
        if wish.keep:
            stage.crew.left_running = True
    return outcome


@contextmanager
def taken_down(stage: Stage, board: Board) -> Iterator[None]:
    """Around everything: servers stop at its end. A second Ctrl-C must not leave brokers behind."""
    done = failed = False
    try:
        yield
        done = True
    except Exception:
        failed = True
        raise
    finally:
        impatient = [
            (number, signal.signal(number, signal.SIG_IGN))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        ]
        try:
            stage.crew.close()
            if not (done and stage.wish.keep):
                board.phase("taking everything down")
                stage.cluster.down(wipe=not (done or failed), report=board.note)
                if not (done or failed):
                    shutil.rmtree(stage.home, ignore_errors=True)
        finally:
            for number, handler in impatient:
                signal.signal(number, handler)


def _play(stage: Stage, soundings: Soundings, board: Board) -> Scene:
    """Services at work, and what breaks beneath them."""
    crew, wish = stage.crew, stage.wish
    chance = random.Random(f"demo {wish.seed}")  # noqa: S311 - a seed that can be given again is the point
    traffic = Traffic(stage)
    scene = Scene(stage, soundings, traffic, chance, board.note)
    board.phase("transfers on their way")
    crew["spark"].start()  # first: it takes the longest to start
    if wish.calm:
        crew["relay-1"].start()
    else:
        faults.start_armed_relay(scene)
    for name in ("relay-2", "ledger-1", "naive-ledger-1"):
        crew[name].start()
    if not wish.calm:
        to_break = programme(chance)
        traffic.begin(len(to_break))
        for fault in to_break:
            board.breaks(fault.title)
            traffic.next_fault()
            began = time.monotonic()
            result = fault.strike(scene)
            board.mended(Struck(fault.name, fault.title, result, round(time.monotonic() - began, 1)))
        for server in stage.cluster.processes:
            server.start()
    board.phase("the rest of the transfers, as fast as it goes")
    traffic.finish()
    return scene


def _settle(stage: Stage, soundings: Soundings, board: Board) -> None:
    """Until everybody has come to the end. What never gets there is for the comparison to say."""
    crew, messages = stage.crew, stage.wish.messages
    within = _SETTLE_S + messages / 100
    board.phase("waiting until everybody has caught up")
    until(lambda: (soundings.logged() or 0) >= messages, within=within, crew=crew)
    for follower in ("ledger", "report"):
        until(lambda: (soundings.booked(follower) or 0) >= messages, within=within, crew=crew)  # noqa: B023 - at once

    def twin_is_idle() -> bool:
        """It has committed all that its topic holds: what is not booked now never will be."""
        end = kafkalook.ends(stage.admin, naive_bank.TOPIC)
        return end is not None and end == stage.naive_group.committed()

    until(twin_is_idle, within=within, crew=crew)
    for name, service in crew.services.items():
        if not (stage.wish.keep and name in _KEPT):
            service.stop()


def _judge(stage: Stage, soundings: Soundings, scene: Scene, board: Board) -> Outcome:
    """Two checks that know nothing of each other: the tally on Spark, and plain SQL with a plain consumer."""
    board.phase("tally run, on Spark")
    positions = max(_SMALLEST_WINDOW, (soundings.last_position() or 0) + 1)
    tally = stage.crew.add("tally", "-m", "tallymark", "tally", "run", "--json", *SPARK)
    tally.start("--window", str(positions))
    tally.give_up()  # once is enough
    urls = stage.urls
    committed, naive_committed = (
        comparison.bank_books(urls["bank"]),
        comparison.bank_books(urls["naive_bank"]),
    )
    logged = kafkalook.read(stage.client, bank.TOPIC, PARTITIONS)
    stations = {
        "log": comparison.compare(comparison.outbox(urls["bank"]), [(key, id_) for id_, key, _ in logged])
    }
    balances = {}
    for name in ("ledger", "report"):
        books = comparison.follower_books(urls[name])
        stations[name] = comparison.compare(committed.booked, books.booked)
        balances[name] = comparison.balances(committed.accounts, books.accounts)
    naive = comparison.follower_books(urls["naive_ledger"])
    must(lambda: not tally.is_alive(), within=_TALLY_S, what="the tally ends")
    return Outcome(
        messages=stage.wish.messages,
        seed=stage.wish.seed,
        stations=stations,
        balances=balances,
        naive=comparison.compare(naive_committed.booked, naive.booked),
        naive_balances=comparison.balances(naive_committed.accounts, naive.accounts),
        tally=_tallied(stage, tally.log),
        faults=board.faults,
        survivor=scene.survivor or _any_message(soundings),
        seconds=round(board.elapsed_s, 1),
        home=str(stage.home),
        try_next=_try_next(stage, scene.survivor or _any_message(soundings)),
    )


def _tallied(stage: Stage, log: Path) -> Tallied:
    said = log.read_text(errors="replace").splitlines()
    found = next((line for line in reversed(said) if line.startswith("{")), None)
    report: dict[str, Any] = (
        json.loads(found) if found else {"error": said[-1] if said else "it said nothing"}
    )
    if "error" in report:
        raise Problem(f"the tally did not run: {report['error']}", remedy=f"its log: {log}")
    chain = Findings(stage.urls["bank"]).chain()
    certificate = None
    if chain:
        stated = chain[-1].said
        certificate = Certified(
            chain[-1].number,
            stated.window.start,
            stated.window.end - 1,
            stated.written,
            stated.logged,
            {name: each.applied for name, each in stated.consumers.items()},
            chain[-1].hash,
        )
    return Tallied(
        messages=report["messages"],
        missing=report["missing"],
        doubled=report["doubled"],
        reordered=report["reordered"],
        findings=sum(each["count"] for each in report["by_stage"]),
        certificate=certificate,
    )


def _any_message(soundings: Soundings) -> str:
    return str(soundings.ask("bank", "select id from tallymark.outbox order by position limit 1") or "")


def _try_next(stage: Stage, message: str) -> list[tuple[str, str]]:
    home, config = shlex.quote(str(stage.home)), shlex.quote(str(stage.config))
    which = "of the run" if stage.wish.calm else "whose relay was killed in mid-batch"
    line = put_on_path()
    found = [(line, "so that your shell finds tallymark")] if line else []
    look = [
        (f"export TALLYMARK_CONFIG={config}", "where all of it is"),
        (f"tallymark trace {message}", f"the life of a message {which}"),
        ("tallymark tally verify", "compute the certificate anew from the data"),
    ]
    if stage.wish.keep:
        stop = shlex.quote(str(stage.home / "stop.sh"))
        status = ("tallymark relay status --database bank", "who relays what")
        return [*found, *look, status, (f"sh {stop}", "end all of it, and delete it")]
    again = (f"tallymark local up --home {home}", "its data are kept until the next demo: start it again")
    return [*found, again, *look]
