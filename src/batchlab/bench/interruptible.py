"""Ctrl-C while a load runs: pressed once or many times, it ends the load and keeps what was measured."""

import asyncio
import signal
import threading
import time
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
AT_ONCE = 2.0
"""Seconds after a first Ctrl-C in which others are taken for the same one: who presses later does not want to wait."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in which the first Ctrl-C cancels and those that follow at once do nothing.

    With asyncio.run alone the second would raise KeyboardInterrupt in the middle of what the first was to save. What
    was cancelled and has a result all the same leaves SIGINT ignored, so that the result can be written. Raises
    KeyboardInterrupt where it has none.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        return asyncio.run(main)
    pressed: list[float] = []

    async def cancelled_once() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def press(number: int, frame: FrameType | None) -> None:
            now = time.monotonic()
            if loop.is_closed() or (pressed and now - pressed[0] > AT_ONCE):
                raise KeyboardInterrupt
            if not pressed:
                pressed.append(now)
                loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGINT, press)
        return await main

    after: Any = before
    try:
        result = asyncio.run(cancelled_once())
        after = signal.SIG_IGN if pressed else before
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, after)
    return result
