"""batchlab serve."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
from pathlib import Path
from typing import Any

import click

from batchlab.cli.notes import note
from batchlab.cli.scenario_options import Changes, scenario_options
from batchlab.errors import BatchlabError, InputError, raised
from batchlab.files import allow_many_files, flush, whole_file
from batchlab.metrics.fold import Summary
from batchlab.scenario import load
from batchlab.trace.write import TraceWriter
from batchlab.units import counted

OF_THE_PORT = (errno.EADDRINUSE, errno.EACCES)
"""Errors of an address that another port would not have: it is taken, or only for the system's own services."""


@click.command()
@click.argument("scenario", type=click.Path())
@scenario_options(workload=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option("--served-model-name", metavar="NAME", help="The model's name; by default that of the file.")
@click.option(
    "--tokens-per-chunk",
    default=1,
    show_default=True,
    type=click.IntRange(1, 2**20),
    help="Output tokens in one event of a stream, as a gateway that bundles.",
)
@click.option(
    "--retry-after",
    default=1,
    show_default=True,
    type=click.IntRange(0, 10**6),
    help="Seconds that a refused client is told to wait.",
)
@click.option("--trace", type=click.Path(), metavar="FILE", help="Write the iteration trace when the server ends.")
def serve(
    scenario: str,
    changes: Changes,
    host: str,
    port: int,
    served_model_name: str | None,
    tokens_per_chunk: int,
    retry_after: int,
    trace: str | None,
) -> None:
    """Answer OpenAI requests as the engine of a SCENARIO would: its scheduler and its times, without a model.

    The scenario's [workload] is not used: the clients are the load. Ends with Ctrl-C or SIGTERM.
    """
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise InputError(
            "serve",
            None,
            None,
            "needs aiohttp: pip install 'batchlab[serve]', or in a checkout .venv/bin/pip install -e '.[serve]'",
        ) from None
    loaded = load(scenario, changes.overrides(scenario), changes.names, check=False)
    if len(loaded.runs) > 1:
        raise InputError(scenario, "engine.policy", [run.engine for run in loaded.runs], "choose one with --policy")
    for line in loaded.runs[0].notes:
        note(line)
    allow_many_files()
    model = Path(scenario).stem if served_model_name is None else served_model_name
    with contextlib.ExitStack() as stack:
        observers: list[Any] = []
        if trace is not None:
            file = stack.enter_context(whole_file(trace))
            summary = Summary()
            observers = [summary, TraceWriter(file, summary)]
        try:
            asyncio.run(_serve(loaded, observers, host, port, (model, tokens_per_chunk, retry_after)))
        except InputError as error:
            raise loaded.locate(error) from None
        if trace is not None:
            flush(file, trace)


async def _serve(loaded: Any, observers: list[Any], host: str, port: int, settings: tuple[Any, ...]) -> None:
    from batchlab.serve.engine import Engine
    from batchlab.serve.server import Settings, serving

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # on Windows Ctrl-C interrupts instead
            loop.add_signal_handler(number, ended.set)
    engine = Engine(loaded.runs[0], observers)
    try:
        async with serving(engine, Settings(*settings), host, port) as (port, failed):
            if not _is_loopback(host):
                note(f"listening on {host}: everybody who reaches this address is answered")
            shown = f"[{host}]" if ":" in host else host
            note(f"{engine.run.engine} answers at http://{shown}:{port} (model {settings[0]}); Ctrl-C ends it")
            await asyncio.wait([asyncio.ensure_future(ended.wait()), failed], return_when=asyncio.FIRST_COMPLETED)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        if error.errno in OF_THE_PORT:
            raise InputError("--port", None, port, f"cannot listen there on {host}: {reason}") from error
        raise InputError("--host", None, f"{host}:{port}", f"cannot listen there: {reason}") from error
    except BatchlabError:
        raise
    except Exception as error:  # of a policy of one's own
        if type(engine.run.policy).__module__.startswith("batchlab."):
            raise
        raise BatchlabError(f"policy {engine.run.engine}: {raised(error)}") from error
    results = ", ".join(f"{count:,} {result}" for result, count in sorted(engine.ended.items()))
    note(
        f"served {counted(sum(engine.ended.values()), 'request')} in "
        f"{counted(engine.iterations, 'iteration')}: {results or 'none'}"
    )


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
