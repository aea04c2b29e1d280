"""An event loop whose time passes only when nothing else is left to do: tests of servers that are exact and quick.

Sockets are real, and what was written to one has to have arrived before the time moves: so the loop looks at them for a
millisecond of real time before each jump.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LOOK = 0.001
"""Real seconds for which sockets are given the chance to say something before the time moves; 0 without sockets."""
IDLE = 5.0
"""Real seconds without anything to wait for after which a test hangs."""


class Jumping(selectors.DefaultSelector):
    """Instead of waiting for the next timer, moves the clock to it."""

    def __init__(self, look: float) -> None:
        super().__init__()
        self.look = look
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """What is ready."""
        if timeout is None:
            found = super().select(IDLE)
            assert found, "nothing happens any more, and nothing is going to"
            return found
        found = super().select(0 if timeout <= 0 else self.look)
        if not found and timeout > 0:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on the clock of its selector."""

    def __init__(self, look: float) -> None:
        self.jumping = Jumping(look)
        super().__init__(self.jumping)

    def time(self) -> float:
        """Seconds since it was made."""
        return self.jumping.now


def run(main: Coroutine[Any, Any, T], look: float = LOOK) -> T:
    """Run a coroutine in such a loop."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(look)) as runner:
        return runner.run(main)
