"""Anyscale's benchmark: the same lengths, the real policies, a step time from the GPU's data."""

from typing import Any

from batchlab.core.limits import Limits
from batchlab.policies.fastertransformer import FasterTransformer
from batchlab.policies.static import Static
from batchlab.policies.vllm import Vllm
from batchlab.policies.vllm_v0 import VllmV0
from batchlab.published import loads
from batchlab.published.record import Record
from batchlab.published.records import RECORDS
from batchlab.published.result import Compared, Constant, Reproduction, Tell, Varied
from batchlab.published.steptimes import OneGpu
from batchlab.simulation import Run, simulate
from batchlab.units import NS_IN_S

CAPS = {32: 8700, 128: 7500, 512: 8100, 1536: 8100}
"""Output cap -> max_num_batched_tokens, as the benchmark starts vLLM."""
HOST = 0.008
SLEEP = 0.010
LONGEST = 1536

_GPU = (
    Constant("parameters", "12.85e9, 2 bytes each", "OPT-13B"),
    Constant("KV memory of a token", "819,200 bytes", "40 layers, hidden 5,120, fp16"),
    Constant("arithmetic, bandwidth", "312 TFLOP/s, 1.555 TB/s", "vendor's data of the A100-40GB"),
    Constant("eta, share of the bandwidth", "0.8", "assumed, usual for such kernels"),
)
_LENGTHS = "the output lengths are the benchmark's own, from its seed; a length of 0 counts as 1"
_BURST = "latency, or capacity under an objective, since it is an offline burst; other models or GPUs"


def tokens_per_s(policy: Any, limits: Limits, cost: OneGpu, cap: int) -> float:
    """The benchmark's metric of one run: prompt and output tokens over the time of the last completion."""
    requests = loads.anyscale(cap)
    end = simulate(Run(policy, limits, cost, requests, inline=False))
    return sum(r.prompt + r.output for r in requests) / (end.time / NS_IN_S)


def vllm(cap: int, prefill_first: bool = False, slots: int = 14_100, **step: float) -> float:
    """vLLM 0.1.2: whole prompts mixed with decodes (V1's rules without chunks), blocks of 16, watermark 1 %."""
    limits = Limits(max_num_seqs=256, max_num_batched_tokens=CAPS[cap], num_gpu_blocks=slots // 16, block_size=16)
    policy: Any = VllmV0() if prefill_first else Vllm(enable_chunked_prefill=False, watermark=0.01)
    return tokens_per_s(policy, limits, OneGpu(**{"host": HOST + SLEEP, **step}), cap)


def vllm_row(record: Record, tell: Tell) -> Reproduction:
    """The published row at all four caps, without tuning, and what moves it."""
    variants: dict[str, dict[str, Any]] = {
        "mfu 0.65 (fit)": {"mfu": 0.65},
        "host 4 ms": {"host": 0.004 + SLEEP},
        "eta 0.7": {"eta": 0.7},
        "slots 12,000": {"slots": 12_000},
        "prefill first (V0's rules)": {"prefill_first": True},
        "without the 10 ms of sleep": {"host": HOST},
    }
    simulated = []
    for cap in CAPS:
        tell(f"vLLM, cap {cap}")
        simulated.append(vllm(cap))
    sensitivity = []
    for change, settings in variants.items():
        tell(change)
        sensitivity.append(Varied(change, tuple(vllm(cap, **settings) for cap in CAPS)))
    return Reproduction(
        compared=tuple(
            Compared(f"cap {cap}", record.value(f"cap {cap}"), value, "tokens/s")
            for cap, value in zip(CAPS, simulated, strict=True)
        ),
        assumed=(
            _LENGTHS,
            "the scheduler is this project's `vllm` without chunked prefill: decodes, then whole prompts, in one step,"
            " preemption by recompute; 256 seats, and the token budgets that the benchmark starts vLLM with",
            "step = max(arithmetic, weights) + KV + host",
        ),
        constants=(
            *_GPU,
            Constant("mfu, share of the arithmetic", "0.6", "assumed, not tuned; 0.65 is the fit"),
            Constant("host", "8 ms a step", "chosen so that the row comes near", fit=True),
            Constant("sleep", "10 ms a step", "the benchmark's launcher"),
            Constant("KV slots", "14,100", "40 GB less weights and activations, estimated"),
        ),
        sensitivity=tuple(sensitivity),
        not_shown=f"{_BURST}. The published row and its repeat differ by 6 to 15 %, which no simulation can"
        " be closer than",
    )


def vllm_repeat(record: Record, tell: Tell) -> Reproduction:
    """The same simulation beside the independent repeat."""
    return vllm_row(record, tell)


def static(record: Record, tell: Tell) -> Reproduction:
    """Naive static batching at the longest cap, with its own padding and padded to each batch's longest."""
    tell("padded to the longest of all requests")
    simulated = (_static("all"), _static("batch"))
    sensitivity = []
    for change, settings in {
        "kv_reads 1": {"kv_reads": 1.0},
        "kv_reads 2": {"kv_reads": 2.0},
        "host 4 ms": {"host": 0.004},
    }.items():
        tell(change)
        sensitivity.append(Varied(change, (_static("all", **settings), _static("batch", **settings))))
    return Reproduction(
        compared=(
            Compared("padded to the longest of all", record.value("cap 1536"), simulated[0], "tokens/s"),
            Compared("padded to its own longest", None, simulated[1], "tokens/s"),
        ),
        assumed=(
            _LENGTHS,
            "batches of 4; the longest of all requests is 843 tokens, and every batch decodes so far (but"
            " for the last)",
            "step = max(arithmetic, weights) + KV + host, padded members as deep as the others",
        ),
        constants=(
            *_GPU,
            Constant("mfu, share of the arithmetic", "0.5", "assumed"),
            Constant("kv_reads, how often KV is read", "3", "read and concatenated into a copy", fit=True),
            Constant("host", "8 ms a step", "as for vLLM", fit=True),
        ),
        sensitivity=tuple(sensitivity),
        not_shown=f"{_BURST}; one published point, and two constants that fit it",
    )


def _static(padding: Any, **step: float) -> float:
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=2**20)
    return tokens_per_s(Static(padding), limits, OneGpu(**{"mfu": 0.5, "kv_reads": 3.0, **step}), LONGEST)


def fastertransformer(record: Record, tell: Tell) -> Reproduction:
    """FasterTransformer at the longest cap, and its ratio to static batching."""
    tell("static batching, the baseline")
    baseline = _static("all")
    tell("FasterTransformer")
    plain = _fastertransformer()
    sensitivity = []
    for change, settings in {
        "no poll": {"per_batch": 0.0},
        "host 4 ms": {"host": 0.004},
        "mfu 0.6": {"mfu": 0.6},
    }.items():
        value = _fastertransformer(**settings)
        sensitivity.append(Varied(change, (value / baseline, value)))
    return Reproduction(
        compared=(
            Compared("over static", record.value("over static"), plain / baseline, "x"),
            Compared("tokens/s", None, plain, "tokens/s"),
        ),
        assumed=(
            _LENGTHS,
            "cap 1,536, batches of 4, each padded to its own longest output; static batching as in anyscale-static",
        ),
        constants=(
            *_GPU,
            Constant("mfu, share of the arithmetic", "0.5", "assumed"),
            Constant("host", "2 ms a step", "assumed for an engine in C++"),
            Constant("poll", "1 s a batch", "the benchmark's server sleeps so long before each batch"),
            Constant("kv_reads and host of the baseline", "3; 8 ms", "see anyscale-static", fit=True),
        ),
        sensitivity=tuple(sensitivity),
        not_shown=f"{_BURST}; one point, and its denominator is itself a fit",
    )


def _fastertransformer(**step: float) -> float:
    cost = OneGpu(**{"mfu": 0.5, "host": 0.002, "per_batch": 1.0, **step})
    return tokens_per_s(FasterTransformer(), Limits(max_num_seqs=4), cost, LONGEST)


def ratio(record: Record, tell: Tell) -> Reproduction:
    """The headline as the quotient of the two simulated rows, and what of it is the baseline's padding."""
    tell("vLLM")
    top = vllm(LONGEST)
    tell("static batching")
    naive, own = _static("all"), _static("batch")
    row = RECORDS["anyscale-vllm"].value("cap 1536") / RECORDS["anyscale-static"].value("cap 1536")
    tell("sensitivity")
    sensitivity = []
    for change, upper, lower in (
        ("vLLM with mfu 0.65 (fit)", {"mfu": 0.65}, {}),
        ("vLLM with prefill first", {"prefill_first": True}, {}),
        ("static batching with kv_reads 1", {}, {"kv_reads": 1.0}),
    ):
        above, below, of_own = vllm(LONGEST, **upper), _static("all", **lower), _static("batch", **lower)
        sensitivity.append(Varied(change, (above / below, above / below, above / of_own)))
    return Reproduction(
        compared=(
            Compared("over static, the headline", record.value("over static"), top / naive, "x"),
            Compared("over static, quotient of the rows", round(row, 1), top / naive, "x"),
            Compared("over static padded to its own longest", None, top / own, "x"),
        ),
        assumed=("cap 1,536; both sides as in anyscale-vllm (mfu 0.6) and anyscale-static",),
        constants=(
            *_GPU,
            Constant("host of both sides", "8 ms a step", "see anyscale-vllm and anyscale-static", fit=True),
            Constant("kv_reads of static batching", "3", "see anyscale-static", fit=True),
        ),
        sensitivity=tuple(sensitivity),
        not_shown=f"{_BURST}; which of vLLM's techniques gives how much: the ratio is between two whole systems",
    )
