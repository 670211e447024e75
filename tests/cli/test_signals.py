"""What a signal does to a verb, wherever in it the signal lands."""

from __future__ import annotations

import os
import signal

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tallymark.cli.signals import interruptible
from tests.children import start_child


class Interrupts(str):
    """A setting during which Ctrl-C comes, in the middle of the client's C code."""

    def __str__(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return super().__str__()


def test_a_client_drops_the_interrupt_and_says_something_else() -> None:
    """The fault itself. When this fails, the client has learned to pass it on."""
    with pytest.raises(TypeError, match="configuration property"):
        AdminClient({Interrupts("client.id"): "x"})


def test_interrupted_within_a_client_it_is_interrupted_all_the_same() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible(signal.SIGINT):
        AdminClient({Interrupts("client.id"): "x"})


def test_an_error_that_no_signal_came_before_stays_what_it_is() -> None:
    with pytest.raises(KafkaException, match="no_such"), interruptible(signal.SIGINT):
        AdminClient({"no_such": "x"})


def test_told_once_it_hears_no_more_until_it_has_ended() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stopped = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # of the impatient
            stopped.append(True)

    with pytest.raises(KeyboardInterrupt), interruptible(signal.SIGTERM, once=True):
        work()
    assert stopped
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("outlives", [True, False])
def test_a_closed_terminal_ends_it_unless_it_was_started_to_outlive_it(outlives: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if outlives else signal.SIG_DFL)
    ended = False
    try:
        with interruptible(signal.SIGHUP):
            os.kill(os.getpid(), signal.SIGHUP)
    except KeyboardInterrupt:
        ended = True
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended is not outlives


GIVEN_TO_ANOTHER_THREAD = """
import signal, threading
from tallymark.cli.signals import until_told
stop = until_told("test.stop")
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("waits", flush=True)
print("told" if stop.wait(60) else "never told", flush=True)
"""


def test_told_to_stop_by_a_signal_that_another_thread_was_given() -> None:
    """The system may choose any thread, as it does right after SIGCONT; only the main one is woken by it."""
    with start_child(["-c", GIVEN_TO_ANOTHER_THREAD]) as child:
        child.wait_output("waits")
        child.terminate()
        assert child.wait(20) == 0, child.output
        assert child.output.splitlines()[-1] == "told"
