"""A step's time from first principles: what has to be read and computed, over what the GPU can read and compute."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from batchlab import catalog
from batchlab.core.work import Work
from batchlab.costs.base import whole
from batchlab.costs.memory import GIB, MOST_PARALLEL, Memory, activations, weights_of_one_gpu
from batchlab.errors import SettingError

BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128, "mxfp4": 0.5 + 1 / 32}
"""Bytes of a value, with the scales of its group: 16 bits for 128 values of int4, 8 bits for 32 of mxfp4."""
PCIE_BYTES_PER_NS = 25.0
"""What PCIe 4.0 x16 moves in practice, for KV blocks swapped out or in."""
SWAP_BLOCK = 16
LEAST = 1e-6
"""Of a share or a peak: below it a step's time would be more than a number can hold."""
TERMS = ("weights", "compute", "kv", "communication", "overhead")
PEAKS = ("tflops", "bandwidth_tb_s", "memory_gib", "link_gb_s")


class Roofline:
    """Each kind of work takes as long as the slower of reading and computing; kinds follow one another.

    A step takes, in ns, the sum of

    - layers: the larger of weights read and matrix work for all its tokens. Of routed experts, those are read that a
      batch of T tokens is expected to touch, E (1 - (1 - k / E)^T);
    - attention of prefills, which grows with chunk times context, and of decodes: the larger of KV read and work;
    - the output matrix, once for each sequence that gets a token;
    - two all-reduces a layer under tensor parallelism, and the sending from stage to stage of a pipeline;
    - step_us for launches and the host, and moved_block_us for each KV block swapped.

    gpu: a name of the catalog; its peaks tflops (dense, bf16), bandwidth_tb_s, memory_gib and link_gb_s (to the other
    GPUs, one direction) can be given instead or beside it. llm: a name of the catalog, or a path to a config.json of
    Hugging Face. dtype: of activations, embedding and output matrix; weight_dtype and kv_dtype are the same if the
    model does not say otherwise. With fp8 weights matrix work runs at twice tflops where the GPU can; int8, int4 and
    mxfp4 are read smaller and computed as bf16. A step passes all pipeline_parallel stages one after the other.

    What no kernel reaches of the peaks are settings: compute_efficiency, bandwidth_efficiency and link_efficiency, and
    the fixed times allreduce_us and step_us. runtime_gib and visible_memory count for KV memory only.
    """

    unit = "ns"
    idle = "jump"
    files: ClassVar = {"llm": ".json"}

    def __init__(
        self,
        llm: str,
        gpu: str | None = None,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        dtype: Literal["bf16", "fp16"] = "bf16",
        weight_dtype: Literal["bf16", "fp16", "fp8", "int8", "int4", "mxfp4"] | None = None,
        kv_dtype: Literal["bf16", "fp16", "fp8"] | None = None,
        tflops: float | None = None,
        bandwidth_tb_s: float | None = None,
        memory_gib: float | None = None,
        link_gb_s: float | None = None,
        compute_efficiency: float = 0.6,
        bandwidth_efficiency: float = 0.8,
        link_efficiency: float = 0.5,
        allreduce_us: float = 48,
        step_us: float = 130,
        moved_block_us: float | None = None,
        runtime_gib: float = 1.0,
        visible_memory: float = 0.98,
    ) -> None:
        settings = dict(locals())
        del settings["self"]
        self.llm = catalog.find_llm(llm)
        stored = self.llm.weight_dtype
        if weight_dtype is None and stored is not None and stored not in BYTES:
            raise SettingError("weight_dtype", None, f"must be given: {llm} does not say how it is stored", "cost")
        settings["weight_dtype"] = weight_dtype or stored or dtype
        settings["kv_dtype"] = kv_dtype or dtype
        settings |= _peaks(settings)
        if moved_block_us is None:
            moved = SWAP_BLOCK * self.llm.kv_values() * self.llm.layers * BYTES[settings["kv_dtype"]]
            settings["moved_block_us"] = round(moved / PCIE_BYTES_PER_NS / 1000, 3)
        self.settings: dict[str, Any] = settings
        _check(settings, self.llm.heads, self.llm.layers)
        self._prepare()
        self.details: tuple[str, ...] = ("chunks",) if self._window is None else ("chunks", "contexts")

    def _prepare(self) -> None:
        """ns for a unit of each kind of work, on the slowest of the GPUs that share it."""
        s, llm = self.settings, self.llm
        tensor = s["tensor_parallel"]
        flop = 1 / (s["tflops"] * 1000 * s["compute_efficiency"] * tensor)  # ns per operation, of all GPUs of a stage
        byte = 1 / (s["bandwidth_tb_s"] * 1000 * s["bandwidth_efficiency"])  # ns per byte, of one GPU
        weight, value, kv = BYTES[s["weight_dtype"]], BYTES[s["dtype"]], BYTES[s["kv_dtype"]]
        rate = flop / 2 if s["weight_dtype"] == "fp8" and s["fp8"] else flop

        self._dense_token = 2 * llm.dense_weights * rate
        self._dense_read = llm.dense_weights * weight * byte / tensor
        experts = llm.experts
        self._miss = 1.0 if experts is None else 1 - experts.per_token / experts.count
        self._routed_token = 2 * llm.expert_weights * rate * (experts.layers * experts.per_token if experts else 0)
        self._routed_read = llm.routed_weights * weight * byte / tensor
        self._head_sample = 2 * llm.head_weights * flop
        self._head_read = llm.head_weights * value * byte / tensor

        self._prefill_pair = llm.pair_operations(decode=False) * flop
        self._decode_pair = llm.pair_operations(decode=True) * flop
        self._kv_read = llm.kv_values(tensor) * kv * byte
        self._window = llm.window if llm.window_layers else None
        self._window_layers = llm.window_layers if self._window is not None else 0
        self._full_layers = llm.layers - self._window_layers

        stages, link = s["pipeline_parallel"], 1 / (s["link_gb_s"] * s["link_efficiency"])  # ns per byte
        vector = llm.hidden * value * link
        reduces = 2 * llm.layers if tensor > 1 else 0
        hops = stages - 1
        self._fixed_communication = (reduces + hops) * s["allreduce_us"] * 1000
        self._token_communication = vector * (reduces * 2 * (tensor - 1) / tensor + hops)
        self._step = s["step_us"] * 1000
        self._moved_block = s["moved_block_us"] * 1000

    def duration(self, work: Work) -> int:
        """The sum in whole ns, rounded half up."""
        weights, compute, kv, communication, overhead = self._terms(work)
        # not sum(), which adds floats otherwise from Python 3.12 on
        return whole(weights + compute + kv + communication + overhead)

    def breakdown(self, work: Work) -> dict[str, float]:
        """ns of a step by what they are spent on; their sum is the duration before rounding.

        `weights`, `kv`: reading them, where that takes longer than the work done with them; `compute`: the work, where
        it takes longer; `communication`, `overhead`.
        """
        return dict(zip(TERMS, self._terms(work), strict=True))

    def _terms(self, work: Work) -> tuple[float, float, float, float, float]:
        """As TERMS names them."""
        weights = compute = kv = communication = 0.0
        tokens = work.prefill_tokens + work.decode_tokens + work.padding_tokens
        if tokens:
            routed_read = self._routed_read * (1 - _power(self._miss, tokens)) if self._routed_read else 0.0
            for operations, read in (
                (tokens * self._dense_token, self._dense_read),
                (tokens * self._routed_token, routed_read),
                (work.samples * self._head_sample, self._head_read if work.samples else 0.0),
            ):
                if operations > read:
                    compute += operations
                else:
                    weights += read
            for operations, read in self._attention(work):
                if operations > read:
                    compute += operations
                else:
                    kv += read
            communication = self._fixed_communication + tokens * self._token_communication
        return weights, compute, kv, communication, self._step + work.moved_blocks * self._moved_block

    def _attention(self, work: Work) -> list[tuple[float, float]]:
        """ns of work and of reading, for the prefilling and the decoding sequences, in each kind of layers."""
        pairs = sum([tokens * before + tokens * (tokens + 1) // 2 for tokens, before in work.chunks])
        found = self._kinds(self._full_layers, pairs, work.prefill_context, work.context_tokens - work.prefill_context)
        window = self._window
        if window is not None:
            pairs = sum([_pairs_in_window(tokens, before, window) for tokens, before in work.chunks])
            keys = sum([min(before, window - 1) + tokens for tokens, before in work.chunks])
            decoded = sum([min(context, window) for context in work.contexts])
            found += self._kinds(self._window_layers, pairs, keys, decoded)
        return found

    def _kinds(self, layers: int, pairs: int, keys: int, decoded: int) -> list[tuple[float, float]]:
        """pairs, keys: of prefills, query-key pairs and keys read; decoded: of decodes, both."""
        return [
            (layers * pairs * self._prefill_pair, layers * keys * self._kv_read),
            (layers * decoded * self._decode_pair, layers * decoded * self._kv_read),
        ]

    def memory(self, utilization: float, step_tokens: int) -> Memory:
        """What a GPU of this configuration holds, where an engine takes the share `utilization` of what it sees.

        step_tokens: the largest step that activations must have room for.
        """
        s = self.settings
        tensor, stages = s["tensor_parallel"], s["pipeline_parallel"]
        weight, value, kv = BYTES[s["weight_dtype"]], BYTES[s["dtype"]], BYTES[s["kv_dtype"]]
        return Memory(
            total=s["memory_gib"] * GIB * s["visible_memory"] * utilization,
            weights=weights_of_one_gpu(self.llm, tensor, stages, weight, value),
            reserve=s["runtime_gib"] * GIB + activations(self.llm, tensor, step_tokens, value),
            kv_token=-(-self.llm.layers // stages) * self.llm.kv_values(tensor) * kv,
        )

    def kv_blocks(self, utilization: float, block_size: int, step_tokens: int) -> int:
        """KV blocks for an engine that starts so. Raises SettingError if there is no room for one."""
        memory = self.memory(utilization, step_tokens)
        blocks = memory.blocks(block_size)
        if blocks < 1:
            expected = self.shortage(utilization, step_tokens, block_size)
            raise SettingError("gpu_memory_utilization", utilization, expected)
        return blocks

    def most_blocks(self, block_size: int, step_tokens: int) -> int | None:
        """KV blocks in all the memory that the weights leave, with nothing kept for anything else.

        None with a sliding window: engines count blocks by groups of layers there, so that their numbers are higher.
        Raises SettingError where the weights alone are more than a GPU's memory.
        """
        memory = self.memory(1.0, step_tokens)
        if memory.weights > memory.total:
            raise SettingError("llm", None, self.shortage(1.0, step_tokens, block_size), "cost")
        return None if self._window is not None else memory._replace(reserve=0.0).blocks(block_size)

    def shortage(self, utilization: float, step_tokens: int, block_size: int = 1) -> str:
        """How much memory is missing for the model and one KV block, and what would do."""
        s = self.settings
        memory = self.memory(utilization, step_tokens)
        missing = memory.kv_token * block_size - memory.left
        gpu, gpus = s["gpu"] or "the GPU", s["tensor_parallel"] * s["pipeline_parallel"]
        gpu = gpu if gpus == 1 else f"each of {gpus} x {gpu}"
        for tensor in range(s["tensor_parallel"] + 1, MOST_PARALLEL + 1):
            if self.llm.heads % tensor == 0 and tensor & (tensor - 1) == 0:
                wider = Roofline(**{key: s[key] for key in s if key != "fp8"} | {"tensor_parallel": tensor})
                if wider.memory(utilization, step_tokens).blocks(block_size):
                    advice = f"tensor_parallel = {tensor} would fit"
                    break
        else:
            advice = f"no tensor_parallel up to {MOST_PARALLEL} would fit"
        return (
            f"{s['llm']} does not fit: weights {memory.weights / 1e9:.1f} GB and reserve {memory.reserve / 1e9:.1f} GB "
            f"of {memory.total / 1e9:.1f} GB on {gpu}, {missing / 1e9:.1f} GB are missing; {advice}"
        )

    def describe(self) -> dict[str, Any]:
        """All settings as they hold, defaults and the catalog's included, and the model's size."""
        shown = {key: value for key, value in self.settings.items() if key != "fp8"}
        if shown["llm"].endswith(".json"):
            shown["llm"] = Path(shown["llm"]).name  # the same wherever the run was started
        sizes = {"parameters": self.llm.parameters, "kv_values_per_token": self.llm.layers * self.llm.kv_values()}
        return {"model": "roofline", **shown, **sizes}


def _power(base: float, exponent: int) -> float:
    """By multiplications alone, which are the same on every machine; the C library's pow is not."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _pairs_in_window(tokens: int, before: int, window: int) -> int:
    """Query-key pairs of a chunk where each query sees at most `window` keys, itself included."""
    growing = min(tokens, max(0, window - before))  # queries that still see everything
    return growing * before + growing * (growing + 1) // 2 + (tokens - growing) * window


def _peaks(settings: dict[str, Any]) -> dict[str, Any]:
    """The GPU's peaks: those given, else the catalog's."""
    name = settings["gpu"]
    gpu = None if name is None else catalog.find_gpu(name)
    found: dict[str, Any] = {"fp8": gpu is not None and gpu.fp8}
    for peak in PEAKS:
        found[peak] = settings[peak] if settings[peak] is not None or gpu is None else getattr(gpu, peak)
        if found[peak] is None:
            needed = f"must name a GPU (`batchlab catalog` lists them), or give {', '.join(PEAKS)}"
            raise SettingError("gpu", None, needed, "cost")
    return found


def _check(settings: dict[str, Any], heads: int, layers: int) -> None:
    """Refuse what is no number of its kind, and GPUs that cannot share the model. Raises SettingError."""
    for name in ("compute_efficiency", "bandwidth_efficiency", "link_efficiency", "visible_memory"):
        if not 0 < settings[name] <= 1:
            raise SettingError(name, settings[name], "must be a share, above 0 and at most 1", "cost")
    for name in PEAKS:
        if not 0 < settings[name] <= 1e9:
            raise SettingError(name, settings[name], "must be a number above 0, at most 1e9", "cost")
    for name in ("compute_efficiency", "bandwidth_efficiency", "link_efficiency", *PEAKS):
        if settings[name] < LEAST:
            raise SettingError(name, settings[name], f"must be at least {LEAST}", "cost")
    for name in ("allreduce_us", "step_us", "moved_block_us", "runtime_gib"):
        if not 0 <= settings[name] <= 1e9:
            raise SettingError(name, settings[name], "must be a number from 0 to 1e9", "cost")
    tensor, stages = settings["tensor_parallel"], settings["pipeline_parallel"]
    if tensor < 1 or heads % tensor:
        raise SettingError(
            "tensor_parallel", tensor, f"must be at least 1 and divide the {heads} attention heads", "cost"
        )
    if not 1 <= stages <= layers:
        raise SettingError("pipeline_parallel", stages, f"must be from 1 to the {layers} layers", "cost")
