"""The step times behind the reproductions, as cost models: seconds, rounded to ns once a step."""

from dataclasses import dataclass
from typing import Any

from batchlab.core.work import Work
from batchlab.costs.base import whole
from batchlab.costs.lines import Line
from batchlab.units import NS_IN_S

A100_FLOPS = 312e12
A100_40_BYTES_PER_S = 1.555e12
A100_80_BYTES_PER_S = 2.039e12
FP16 = 2
"""Bytes."""


class InSeconds:
    """What the models here share: a clock in ns, and a batch whose ended members are padded.

    A padded member is as deep as the deepest one that goes on, since in a tied batch all are moved on together.
    """

    unit = "ns"
    idle = "jump"
    details: tuple[str, ...] = ("chunks", "contexts")

    def __init__(self) -> None:
        self._deepest = 0

    def duration(self, work: Work) -> int:
        """The step's seconds in ns, rounded half up, at least 1."""
        if work.chunks or work.contexts:
            prefilled = max((computed + tokens for tokens, computed in work.chunks), default=0)
            self._deepest = max(prefilled, *work.contexts) if work.contexts else prefilled
        else:
            self._deepest += 1
        return whole(self.seconds(work) * NS_IN_S)

    def seconds(self, work: Work) -> float:
        """How long the step takes."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The name, for a trace's header."""
        return {"model": f"published {type(self).__name__}"}

    def _padding_context(self, work: Work) -> int:
        return work.padding_tokens * self._deepest


@dataclass
class OneGpu(InSeconds):
    """A dense model on one GPU: the slower of arithmetic and reading the weights, then reading KV, then the host.

    params: of the model. layers, hidden: its shape, for attention and for the KV bytes of a token. mfu: share of the
    GPU's arithmetic that prefill reaches; eta: of its bandwidth. kv_reads: how often KV is read (a copy counts as 2).
    host: s in every step; per_batch: s more where a prompt is computed.
    """

    params: float = 12.85e9
    layers: float = 40
    hidden: float = 5120
    flops: float = A100_FLOPS
    bytes_per_s: float = A100_40_BYTES_PER_S
    mfu: float = 0.6
    eta: float = 0.8
    kv_reads: float = 1
    host: float = 0.008
    per_batch: float = 0

    def __post_init__(self) -> None:
        super().__init__()

    def seconds(self, work: Work) -> float:
        """The stated sum."""
        tokens = work.prefill_tokens + work.decode_tokens + work.padding_tokens
        attention = sum(4 * self.layers * self.hidden * (n * before + n * n / 2) for n, before in work.chunks)
        arithmetic = (2 * self.params * tokens + attention) / (self.flops * self.mfu)
        weights = self.params * FP16 / (self.bytes_per_s * self.eta)
        kv_bytes = 2 * self.layers * self.hidden * FP16 * (sum(work.contexts) + self._padding_context(work))
        kv = self.kv_reads * kv_bytes / (self.bytes_per_s * self.eta)
        return max(arithmetic, weights) + kv + self.host + (self.per_batch if work.chunks else 0)


@dataclass
class TensorParallel(InSeconds):
    """A dense model over stages of 8 A100-40GB each, with two all-reduces a layer. A step passes all stages.

    factor: a control plane's share on top. all_reduce: least s of one; per_message and per_megabyte: s of a larger one.
    """

    layers: int
    hidden: int
    stages: int = 1
    mfu: float = 0.5
    eta: float = 0.8
    factor: float = 1
    all_reduce: float = 70e-6
    per_message: float = 60e-6
    per_megabyte: float = 11.5e-6
    per_stage: float = 100e-6

    def __post_init__(self) -> None:
        super().__init__()

    def seconds(self, work: Work) -> float:
        """The stages' times, added up."""
        tokens = work.prefill_tokens + work.decode_tokens + work.padding_tokens
        layers = self.layers / self.stages
        params = 12 * layers * self.hidden**2
        bytes_per_s = 8 * A100_40_BYTES_PER_S * self.eta
        arithmetic = 2 * params * tokens / (8 * A100_FLOPS * self.mfu)
        kv = 2 * layers * self.hidden * FP16 * (work.context_tokens + self._padding_context(work)) / bytes_per_s
        megabytes = tokens * self.hidden * FP16 / 1e6
        reduces = 2 * layers * max(self.all_reduce, self.per_message + self.per_megabyte * megabytes)
        stage = max(arithmetic, params * FP16 / bytes_per_s) + kv + reduces + self.per_stage
        return stage * self.stages * self.factor


PREFILL_MS = Line((1, 512, 1024, 2048, 4096, 8192), (46.8, 106.0, 214.0, 366.0, 758.0, 1863.0))
"""Yi-34B on 2 x A100-80: ms of a prefill of so many tokens, measured with Sarathi-Serve's artifact; 1 is a decode."""
DECODE_MS = Line((1, 8, 32, 64, 128), (46.8, 69.7, 87.9, 128.0, 189.0))
"""The same: ms of a step of so many decodes."""


@dataclass
class Yi34B(InSeconds):
    """Yi-34B on 2 x A100-80: prefill interpolated in measured figures, decode from the paper's objective or measured.

    objective: s of a step of 32 decodes at a context of 4,096, the paper's unit; None takes DECODE_MS instead.
    speed: factor on all times.
    """

    objective: float | None = 0.040
    speed: float = 1

    def __post_init__(self) -> None:
        super().__init__()

    def seconds(self, work: Work) -> float:
        """A step with a prompt in it goes by its tokens; KV is read on top of it where the decode model says so."""
        kv = 0.0
        if self.objective is None:
            least = DECODE_MS(work.decode_tokens) if work.decode_tokens else 0.0
        else:
            least = self.objective * 1e3 - self._kv_ms(32 * 4096)
            kv = self._kv_ms(sum(work.contexts))
        if not work.chunks:
            return (least + kv) * self.speed / 1e3
        prefill = PREFILL_MS(work.prefill_tokens + work.decode_tokens)
        prefill += sum(_behind(tokens, before) for tokens, before in work.chunks)
        return (max(prefill, least) + kv) * self.speed / 1e3

    @staticmethod
    def _kv_ms(context: int) -> float:
        """60 layers, 8 KV heads of 128, half on each GPU, at .8 of the bandwidth."""
        return 1e3 * context * (2 * 60 * 8 * 128 * FP16) / 2 / (A100_80_BYTES_PER_S * 0.8)


def _behind(tokens: int, before: int) -> float:
    """Ms that a chunk takes longer behind so many tokens than alone, by the growth of the whole prompt's time."""
    if before < PREFILL_MS.sizes[1]:
        return 0.0
    grown = PREFILL_MS(before + tokens) - PREFILL_MS(before)
    return max(0.0, grown - PREFILL_MS(tokens))
