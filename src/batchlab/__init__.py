"""batchlab: how LLM serving engines decide, iteration by iteration, which requests run."""

__version__ = "0.1.0"

from batchlab import _build

_build.prefer_source()
_build.require_one_form()

from batchlab.clients.request import Request  # noqa: E402
from batchlab.conform.cases import conform as conform_case  # noqa: E402
from batchlab.core.batch import Batch  # noqa: E402
from batchlab.core.limits import Limits  # noqa: E402
from batchlab.core.scheduler import View  # noqa: E402
from batchlab.core.sequence import Sequence  # noqa: E402
from batchlab.core.work import Refusal, Wait  # noqa: E402
from batchlab.errors import BatchlabError, InputError, StalledError  # noqa: E402
from batchlab.events import Iteration  # noqa: E402
from batchlab.metrics.fold import Summary  # noqa: E402
from batchlab.policies.base import Policy  # noqa: E402
from batchlab.scenario import Scenario, load  # noqa: E402
from batchlab.simulate import Run, simulate  # noqa: E402
from batchlab.trace.verify import verify  # noqa: E402
from batchlab.trace.write import TraceWriter  # noqa: E402

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
