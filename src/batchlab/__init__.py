"""batchlab: how LLM serving engines decide, iteration by iteration, which requests run."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from batchlab import _build

__version__ = "0.1.0"

_build.prefer_source()
_build.require_one_form()

if TYPE_CHECKING:
    from batchlab.clients.request import Request
    from batchlab.conform.cases import conform_case
    from batchlab.core.batch import Batch
    from batchlab.core.limits import Limits
    from batchlab.core.scheduler import View
    from batchlab.core.sequence import Sequence
    from batchlab.core.work import Refusal, Wait
    from batchlab.errors import BatchlabError, InputError, StalledError
    from batchlab.events import Iteration
    from batchlab.metrics.fold import Summary
    from batchlab.policies.base import Policy
    from batchlab.scenario import Scenario, load
    from batchlab.simulation import Run, simulate
    from batchlab.trace.verify import verify
    from batchlab.trace.write import TraceWriter

__all__ = [
    "Batch",
    "BatchlabError",
    "InputError",
    "Iteration",
    "Limits",
    "Policy",
    "Refusal",
    "Request",
    "Run",
    "Scenario",
    "Sequence",
    "StalledError",
    "Summary",
    "TraceWriter",
    "View",
    "Wait",
    "conform_case",
    "load",
    "simulate",
    "verify",
]

_HOMES = {
    "clients.request": ("Request",),
    "conform.cases": ("conform_case",),
    "core.batch": ("Batch",),
    "core.limits": ("Limits",),
    "core.scheduler": ("View",),
    "core.sequence": ("Sequence",),
    "core.work": ("Refusal", "Wait"),
    "errors": ("BatchlabError", "InputError", "StalledError"),
    "events": ("Iteration",),
    "metrics.fold": ("Summary",),
    "policies.base": ("Policy",),
    "scenario": ("Scenario", "load"),
    "simulation": ("Run", "simulate"),
    "trace.verify": ("verify",),
    "trace.write": ("TraceWriter",),
}
"""Each name comes from its module when it is first asked for: a command must be able to say that it was interrupted
before all of them are there, and a module of batchlab needs only what it imports itself."""


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
