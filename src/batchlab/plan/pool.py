"""The same function of many things on several cores."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from batchlab.errors import BatchlabError

T = TypeVar("T")
R = TypeVar("R")
MASKS = hasattr(signal, "pthread_sigmask")
ENDING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(function: Callable[[T], R], things: Iterable[T], jobs: int) -> Iterator[tuple[T, R]]:
    """Every thing with its result, as they become ready; with one job, in order and in this process.

    Where the caller stops, or dies, the other processes end at once, whatever they are at. Raises BatchlabError where
    one of them is killed.
    """
    todo = list(things)
    if jobs == 1 or len(todo) < 2:
        for thing in todo:
            yield thing, function(thing)
        return
    context = multiprocessing.get_context("spawn")  # nothing of this process's threads and files goes along
    there, here = context.Pipe(duplex=False)
    count = min(jobs, len(todo))
    pool = ProcessPoolExecutor(count, context, _begin, (there,))
    try:
        with _uninterrupted():
            futures = {pool.submit(function, thing): thing for thing in todo}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    except BaseException as error:
        here.close()
        pool.shutdown(cancel_futures=True)  # they end at once; at exit, the executor would race with its own thread
        if isinstance(error, BrokenProcessPool):
            message = (
                f"one of {count} processes was killed, perhaps because memory ran out: try again with fewer --jobs"
            )
            raise BatchlabError(message) from None
        raise
    pool.shutdown()
    here.close()
    there.close()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """What ends a program waits meanwhile; in processes that are started here, until `_begin`: none tells how far it
    had come."""
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        held = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in held}
    if MASKS:  # which a new process takes over; another thread of this one can still be told, and then `came` has it
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        if MASKS:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _begin(parent: Connection) -> None:
    """Of a worker: it lives as long as the other end of the pipe is open."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a script's background, where Ctrl-C is not for us
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it reaches all: without a traceback from each
    if MASKS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: Connection) -> None:
    try:
        parent.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)
