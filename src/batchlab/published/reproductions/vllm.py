"""vLLM's paper: how many requests run at once, and how much of the KV memory holds something."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.events import Event, Iteration
from batchlab.policies.vllm import Vllm
from batchlab.published import loads
from batchlab.published.record import Record
from batchlab.published.result import Compared, Constant, Reproduction, Tell, Varied
from batchlab.published.schedulers import BuddyOrca
from batchlab.published.steptimes import OneGpu
from batchlab.simulation import Run, simulate
from batchlab.units import NS_IN_S

SLOTS = 15_700
LONGEST = 2048
RATE = 2.0
SECONDS = 900
WARM_UP = 90
SEEDS = (1, 2, 3)
OUTPUT_CV = 0.87
PROMPT_CV = 1.5
SYSTEMS = ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)", "vLLM")


class Fill(NamedTuple):
    """Averages over time: requests in the batch, and the share of the slots with a token's keys and values, in %."""

    batch: float
    kv_use: float


class _Filling:
    """An observer that averages between warm-up and the last arrival."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._held = 0
        self._time = self._batch = self._kv = 0

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Iteration):
            return
        for preemption in event.preempted:
            self._held -= self._tokens.pop(preemption.id, 0)
        for id, _, tokens in event.scheduled:
            self._tokens[id] = self._tokens.get(id, 0) + tokens
            self._held += tokens
        if WARM_UP * NS_IN_S <= event.start < SECONDS * NS_IN_S:
            lasted = event.end - event.start
            self._time += lasted
            self._batch += lasted * len(event.scheduled)
            self._kv += lasted * self._held
        for id in event.completed:
            self._held -= self._tokens.pop(id)

    @property
    def fill(self) -> Fill:
        return Fill(self._batch / self._time, 100 * self._kv / self._time / SLOTS)


def max_tokens(system: str, prompt: int, output: int) -> int:
    """What a request of this system reserves for its output: all that is left, a power of two, or the truth."""
    if system == "Orca (Max)":
        return LONGEST - prompt
    if system == "Orca (Pow2)":
        return min(LONGEST - prompt, 1 << (output - 1).bit_length())
    return output


@cache
def fill(
    system: str,
    output_cv: float = OUTPUT_CV,
    prompt_cv: float = PROMPT_CV,
    host: float = 0.008,
    seeds: Sequence[int] = SEEDS,
) -> Fill:
    """The averages of one system, over the seeds."""
    found = []
    for seed in seeds:
        requests = [
            Request(str(i), arrival, prompt, output, max_tokens(system, prompt, output))
            for i, (arrival, prompt, output) in enumerate(loads.sharegpt(RATE, SECONDS, seed, prompt_cv, output_cv))
        ]
        limits = Limits()
        policy: Any = BuddyOrca(SLOTS)
        if system == "vLLM":
            limits = Limits(max_num_seqs=256, max_num_batched_tokens=2560, num_gpu_blocks=SLOTS // 16, block_size=16)
            policy = Vllm(enable_chunked_prefill=False, watermark=0.01)
        filling = _Filling()
        simulate(Run(policy, limits, OneGpu(host=host), requests, inline=False), [filling])
        found.append(filling.fill)
    return Fill(*(sum(values) / len(found) for values in zip(*found, strict=True)))


def batch(record: Record, tell: Tell) -> Reproduction:
    """Average batches."""
    return _reproduced(record, tell, "batch", "requests")


def kv_use(record: Record, tell: Tell) -> Reproduction:
    """Shares of KV memory with token states."""
    return _reproduced(record, tell, "kv_use", "%")


def _reproduced(record: Record, tell: Tell, figure: str, unit: str) -> Reproduction:
    simulated = []
    for system in SYSTEMS:
        tell(f"{system}, {SECONDS} s of arrivals, {len(SEEDS)} seeds")
        simulated.append(getattr(fill(system), figure))
    variants: dict[str, dict[str, Any]] = {
        "output CV 1.0": {"output_cv": 1.0},
        "prompt CV 1.0": {"prompt_cv": 1.0},
        "host 12 ms": {"host": 0.012},
        "host 16 ms": {"host": 0.016},
    }
    sensitivity = []
    for change, settings in variants.items():
        tell(f"sensitivity: {change}, one seed")
        values = tuple(getattr(fill(system, seeds=SEEDS[:1], **settings), figure) for system in SYSTEMS)
        sensitivity.append(Varied(f"{change} (one seed)", values))
    return Reproduction(
        compared=tuple(
            Compared(system, record.value(system), value, unit)
            for system, value in zip(SYSTEMS, simulated, strict=True)
        ),
        assumed=(
            "Orca (Max, Pow2, Oracle): prompt and the reserved output in one block of a buddy allocator,"
            " powers of two from 16"
            f" up, over {SLOTS:,} slots; at 2 requests/s they are saturated, so what counts is how many blocks fit",
            "vLLM: blocks of 16, whole prompts mixed with decodes, watermark 1 %, recompute; 2 requests/s"
            " is its knee, where a"
            " little engine time moves it far",
            f"averages over time, from {WARM_UP} to {SECONDS} s, over {len(SEEDS)} seeds",
            "ShareGPT is known by its means only: prompts log-normal up to 1,024, outputs gamma up to 2,048 together",
        ),
        constants=(
            Constant("output CV", f"{OUTPUT_CV}", "chosen so that the three Orcas come near", fit=True),
            Constant("prompt CV", f"{PROMPT_CV}", "chosen so that Pow2's KV use comes near", fit=True),
            Constant("slots", f"{SLOTS:,}", "the paper: 12 GB beside OPT-13B"),
            Constant("step time", "as in anyscale-vllm, mfu 0.6, eta 0.8", "vendor's data and assumptions"),
            Constant("host", "8 ms a step", "from anyscale-vllm, a fit there", fit=True),
        ),
        sensitivity=tuple(sensitivity),
        not_shown="throughput or latency; the Orcas are the authors' own over a buddy allocator, not Orca itself",
    )
