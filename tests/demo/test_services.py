"""Services and their supervisor, with small processes of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tallymark.lab import leaving
from tallymark.lab.services import Crew, Service, clean_environment
from tests.waiting import wait_for

STAYS = "import signal\nprint('up', flush=True)\nsignal.pause()"
# It starts a process of its own, which must not outlive it.
HAS_A_CHILD = (
    "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
)


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path / "services", clean_environment({}))
    made.open()
    yield made
    made.close()


def started(crew: Crew, program: str) -> Service:
    service = crew.add("it", "-c", program)
    service.start()
    return service


def wait_until_up(service: Service) -> None:
    wait_for(lambda: "up" in service.log.read_text(), what="it is up")


def test_what_was_killed_is_started_again(crew: Crew) -> None:
    service = started(crew, STAYS)
    first = service.pid
    service.kill()
    wait_for(lambda: service.is_alive() and service.pid != first, what="it runs again")
    assert service.killed == 1


def test_what_ended_well_or_was_stopped_is_not_started_again(crew: Crew) -> None:
    done = started(crew, "print('done')")
    wait_for(done.has_ended_well, what="it ends")
    stopped = crew.add("other", "-c", STAYS)
    stopped.start()
    wait_until_up(stopped)
    stopped.stop()
    for service in (done, stopped):
        service.tend()
        assert not service.is_alive()


def test_what_fails_again_and_again_is_named_with_its_last_words(crew: Crew) -> None:
    started(crew, "raise SystemExit('no such database')")
    wait_for(crew.hopeless, within=240, what="it is given up")
    assert crew["it"].last_words() == "no such database"


def test_a_frozen_one_is_woken(crew: Crew) -> None:
    service = started(crew, STAYS)
    process = psutil.Process(service.pid)
    service.freeze()
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED, what="it is frozen")
    service.wake()
    wait_for(lambda: process.status() != psutil.STATUS_STOPPED, what="it is awake")


def test_nothing_outlives_the_crew_not_even_frozen_or_with_children(crew: Crew) -> None:
    parent, frozen = started(crew, HAS_A_CHILD), crew.add("frozen", "-c", STAYS)
    frozen.start()
    frozen.freeze()
    children = wait_for(lambda: psutil.Process(parent.pid).children(), what="it has a child")
    crew.close()
    wait_for(
        lambda: not any(psutil.pid_exists(pid) for pid in (parent.pid, frozen.pid, children[0].pid)),
        what="all are gone",
    )


def test_what_is_left_running_is_left(crew: Crew) -> None:
    service = started(crew, STAYS)
    crew.left_running = True
    crew.close()
    assert service.is_alive()
    service.kill()


def test_what_a_killed_demo_left_is_known_by_its_mark_and_ended(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    crews = [Crew(each / "services", clean_environment({leaving.MARK: str(each)})) for each in (home, other)]
    for crew in crews:
        crew.open()
        crew.left_running = True
        # Until exec is through, a process has no environment that anybody could read.
        wait_until_up(started(crew, STAYS))
        crew.close()
    ours, theirs = (crew["it"] for crew in crews)
    try:
        assert [process.pid for process in leaving.left(home)] == [ours.pid]
        leaving.stop(home)
        assert not ours.is_alive()
        assert theirs.is_alive()
        assert not home.exists()
    finally:
        theirs.kill()
