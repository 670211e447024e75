"""How verbs hear that they are to stop: at once, or, where they run long, when they are ready to."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

log = logging.getLogger("tallymark.cli")


def until_told(action: str) -> threading.Event:
    """Set by the first SIGTERM or Ctrl-C; a second one ends the process at once, which is safe too.

    Python hears a signal in its main thread alone, and the system may give it to another, which wakes nobody: as after
    SIGSTOP and SIGCONT. The pipe is written to in any case, and somebody waits for it.
    """
    stop = threading.Event()
    # Never closed: a signal that comes late would be written to whatever has its number then.
    heard, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def listen() -> None:
        while os.read(heard, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass
        stop.set()

    def told(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        log.info("stopping", extra={"action": action})
        stop.set()

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)
    threading.Thread(target=listen, name="signals", daemon=True).start()
    return stop


@contextmanager
def interruptible(*signs: signal.Signals, once: bool = False) -> Iterator[None]:
    """Each of `signs` ends what runs within with KeyboardInterrupt; with `once`, only the first is heard.

    A signal may come while the C code of a client runs, which drops our KeyboardInterrupt and raises an error
    of its own instead. So what fails after a signal was heard counts as interrupted by it. A closed terminal is not
    heard by what was started to outlive it (nohup).
    """
    heard = False

    def interrupt(_number: int, _frame: object) -> NoReturn:
        nonlocal heard
        heard = True
        if once:
            for sign in signs:
                signal.signal(sign, signal.SIG_IGN)
        raise KeyboardInterrupt

    to_outlive = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heeded = [sign for sign in signs if not (sign is signal.SIGHUP and to_outlive)]
    before = {sign: signal.signal(sign, interrupt) for sign in heeded}
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
