"""Signals that end a program, at moments that must not be cut in two."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

ENDING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
MASKS = hasattr(signal, "pthread_sigmask")


@contextlib.contextmanager
def uninterrupted(processes: bool = False) -> Iterator[None]:
    """What ends a program waits meanwhile, and then does.

    processes: also in those that are started here, until they let it come: none tells how far it had come.
    """
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        held = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in held}
    masks = processes and MASKS
    if masks:  # which a new process takes over; another thread of this one can still be told, and then `came` has it
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
