"""Children of tests: whoever is asked to end is asked when it can hear, and whoever has ended is not waited for."""

from __future__ import annotations

import psutil

from tests.children import start_child

SLOW_TO_LISTEN = """
import asyncio, decimal, signal, threading, xml.dom.minidom
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
told.wait(60)
"""


def test_a_child_that_is_still_importing_is_not_ended_by_the_signal_itself() -> None:
    with start_child(["-c", SLOW_TO_LISTEN]) as child:
        child.terminate()
        assert child.wait() == 0, child.output


def test_whoever_has_ended_is_not_stopped_and_nobody_waits_for_it() -> None:
    with start_child(["-c", ""]) as child:
        psutil.wait_procs([psutil.Process(child.pid)], timeout=30)
        assert not child.stop()


def test_a_child_is_stopped_and_goes_on() -> None:
    with start_child(["-c", SLOW_TO_LISTEN]) as child:
        assert child.stop()
        child.cont()
        child.terminate()
        assert child.wait() == 0, child.output
