"""The same function of many things on several cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import TypeVar

from batchlab.errors import BatchlabError
from batchlab.interrupts import ENDING, MASKS, uninterrupted

T = TypeVar("T")
R = TypeVar("R")


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
        with uninterrupted(processes=True):
            futures = {pool.submit(function, thing): thing for thing in todo}
        for future in as_completed(futures):
            yield futures.pop(future), future.result()
    except BaseException as error:
        here.close()
        with uninterrupted():  # they end at once; cut short, those that still start lose what they start with
            pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            message = (
                f"one of {count} processes was killed, perhaps because memory ran out: try again with fewer --jobs"
            )
            raise BatchlabError(message) from None
        raise
    pool.shutdown()
    here.close()
    there.close()


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
