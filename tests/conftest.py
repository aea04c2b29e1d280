"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    """In the background of a script Ctrl-C is ignored, and every process that a test starts and interrupts would be
    born so."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
