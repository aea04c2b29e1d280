"""A step's time as the sum of its operators' measured times. docs/profiles.md describes the files.

embedding + layers x (2 layernorm + every other matrix and element-wise operator + attention) + final norm + lm_head +
sampler, and with tensor parallelism 2 x layers + 1 all-reduces. What is measured is added up, nothing is tuned.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from batchlab import catalog
from batchlab.core.work import Work
from batchlab.costs.base import whole
from batchlab.costs.profile import Profile, load, load_collectives
from batchlab.costs.waves import Waves
from batchlab.errors import InputError, SettingError

BYTES = 2
"""Of an activation in 16 bits, which all-reduces carry."""


def capture_sizes(most: int) -> list[int]:
    """Batch sizes that vLLM captures CUDA graphs of: 1, 2, 4, then by 8 up to 256 and by 16 beyond (config/vllm.py)."""
    return [size for size in (1, 2, 4, *range(8, 257, 8), *range(272, most + 1, 16)) if size <= most]


class Operators:
    """Looks every operator up in a profile and adds them. `unit` is ns.

    profile: the folder. layers: of the model. cuda_graphs: largest captured batch size; up to it tokens are padded to
    the next captured one; 0 for none. tiles: dense operators take the time of the next profiled size, since matrix
    kernels rise in steps; otherwise the line between two sizes. unequal_contexts: with the profile's skew.csv and the
    GPU's `sms`, the penalty of unequal contexts (waves.py); kv_heads are those of one GPU. Not given, it is on where
    the profile has a skew.csv and both are known. saturation: its one parameter, fitted to skew.csv if not given.
    tensor_parallel: GPUs that all-reduce `hidden_size` values a token by the times in `collectives`, a file or `pcie`.
    expert_parallel: GPUs, each with as many tokens of its own, that share a layer's `experts`, of which each token
    takes experts_per_token; the profile's moe.csv has their times. Blocks swapped in or out cost nothing here.

    llm, gpu: names of the catalog, or a path to a config.json, that fill layers, kv_heads, hidden_size, experts and
    experts_per_token, and sms, where these are not given.
    """

    unit = "ns"
    idle = "jump"
    files: ClassVar = {"profile": "", "llm": ".json", "collectives": ".csv"}

    def __init__(
        self,
        profile: str,
        layers: int | None = None,
        llm: str | None = None,
        gpu: str | None = None,
        cuda_graphs: int = 512,
        tiles: bool = True,
        unequal_contexts: bool | None = None,
        sms: int | None = None,
        kv_heads: int | None = None,
        saturation: float | None = None,
        tensor_parallel: int = 1,
        hidden_size: int | None = None,
        collectives: str | None = None,
        experts: int | None = None,
        experts_per_token: int | None = None,
        expert_parallel: int = 1,
    ) -> None:
        settings = {key: value for key, value in locals().items() if key not in ("self", "__class__")}
        for name in ("layers", "sms", "kv_heads", "tensor_parallel", "hidden_size", "experts", "experts_per_token"):
            if settings[name] is not None and settings[name] < 1:
                raise _wrong(name, settings[name], "must be at least 1")
        if cuda_graphs < 0:
            raise _wrong("cuda_graphs", cuda_graphs, "must be the largest captured batch size, or 0")
        self.profile: Profile = load(Path(profile))
        settings |= _from_catalog(settings, self.profile.moe is not None)
        self._told: list[str] = []
        if unequal_contexts is None:
            unequal_contexts = settings["unequal_contexts"] = self._knows_unequal(settings)
        if settings["layers"] is None:
            raise _wrong("layers", None, "is missing: give it, or the model as llm")
        shown = {key: Path(settings[key]).name for key in self.files if settings[key] is not None}
        self._settings = settings | shown
        self.layers: int = settings["layers"]
        self.tiles = tiles
        self._captured = capture_sizes(cuda_graphs)
        self._dense: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._waves = self._make_waves(unequal_contexts, settings["sms"], settings["kv_heads"], saturation)
        self.details: tuple[str, ...] = ("chunks",) if self._waves is None else ("chunks", "contexts")
        self._parallel = (tensor_parallel, expert_parallel)
        self._reduce = None
        if tensor_parallel > 1 or expert_parallel > 1:
            if settings["hidden_size"] is None:
                raise _wrong("hidden_size", None, "is missing: more than one GPU needs it for what they exchange")
            if collectives is None:
                self._told.append(
                    "what GPUs exchange is timed as over PCIe between two of them; collectives has others"
                )
            self._settings["collectives"] = shown.get("collectives", "pcie")
            self._reduce = load_collectives(collectives or "pcie")
            self._token_bytes = settings["hidden_size"] * BYTES
        self._set_experts(settings["experts"], settings["experts_per_token"])
        self.timed = 0
        self.outside = 0

    def _knows_unequal(self, settings: dict[str, Any]) -> bool:
        """Whether all is there that the penalty of unequal contexts needs; what is not is told after a run."""
        if not (self.profile.folder / "skew.csv").exists():
            return False
        sms, kv_heads = settings["sms"], settings["kv_heads"]
        missing = [name for name in ("sms", "kv_heads") if settings[name] is None]
        if not missing and settings["saturation"] is None and self.profile.saturation(sms, kv_heads) is None:
            self._told.append("unequal contexts are not in the prediction: no batch of skew.csv fills the GPU")
            return False
        if missing:
            self._told.append(
                f"unequal contexts are not in the prediction: {' and '.join(missing)} not given (or gpu and llm)"
            )
        return not missing

    def _make_waves(self, on: bool, sms: int | None, kv_heads: int | None, saturation: float | None) -> Waves | None:
        if not on:
            return None
        for name, value, source in (("sms", sms, "a gpu of the catalog"), ("kv_heads", kv_heads, "the model as llm")):
            if value is None:
                raise _wrong(name, None, f"is missing: unequal_contexts needs it, or {source}")
        assert sms is not None and kv_heads is not None
        if saturation is None:
            saturation = self.profile.saturation(sms, kv_heads)
            if saturation is None:
                raise InputError(self.profile.folder / "skew.csv", None, None, "none of its batches fills the GPU")
        elif not 0 < saturation <= 1:
            raise _wrong("saturation", saturation, "must be a share, above 0 and at most 1")
        self._settings["saturation"] = saturation
        return Waves(sms, kv_heads, saturation)

    def _set_experts(self, experts: int | None, per_token: int | None) -> None:
        parallel = self._parallel[1]
        self._experts = None
        if self.profile.moe is None:
            if experts is not None or per_token is not None or parallel != 1:
                raise _wrong("experts", experts, f"has no use: {self.profile.folder} has no moe.csv")
            return
        if experts is None or per_token is None:
            missing = "experts" if experts is None else "experts_per_token"
            raise _wrong(missing, None, "is missing: the profile has a moe.csv")
        if per_token > experts or not 1 <= parallel <= experts:
            raise _wrong("experts", experts, "must be at least experts_per_token and expert_parallel")
        self._experts = (experts, per_token)

    def duration(self, work: Work) -> int:
        """The sum, in ns. With expert_parallel all its GPUs are taken to compute as much."""
        tokens = self._padded(work)
        us = self._own_us(work, tokens)
        if self._experts is not None:
            us += self._shared_us(tokens * self._parallel[1])
        return whole(us * 1000)

    def together(self, works: Sequence[Work | None]) -> int:
        """A step of engines that share the experts, one for each GPU of expert_parallel: None is an idle one.

        They wait for each other in every layer: the longest of what each has of its own, and the experts at what all
        have together. An idle engine computes one token for nobody (vLLM, execute_dummy_batch).
        """
        idle = Work()
        idle.decode_tokens = idle.samples = idle.context_tokens = 1
        idle.contexts = [1]
        both = [(work, self._padded(work)) for work in (idle if work is None else work for work in works)]
        us = max(self._own_us(work, tokens) for work, tokens in both)
        if self._experts is not None:
            us += self._shared_us(sum(tokens for _, tokens in both))
        return whole(us * 1000)

    def _padded(self, work: Work) -> int:
        """Tokens computed: up to the largest CUDA graph those of the next captured one."""
        tokens = work.prefill_tokens + work.decode_tokens + work.padding_tokens
        return self._captured[bisect_left(self._captured, tokens)] if tokens <= self.largest_graph else tokens

    def _own_us(self, work: Work, tokens: int) -> float:
        """All but the experts, whose GPUs may belong to several engines."""
        chunks, decodes = work.chunks, work.decode_tokens
        context = (work.context_tokens - work.prefill_context) / decodes if decodes else 0.0
        self._count(work.prefill_tokens + decodes + work.padding_tokens, decodes + len(chunks), context, chunks)
        per_layer = self._attention(chunks, decodes, context)
        if self._waves is not None and decodes:
            penalty = self._waves.penalty(work.contexts)
            if penalty != 1.0:
                per_layer += (penalty - 1) * self.profile.attention(0, 0, decodes, context)
        return self.layers * per_layer + self._tokens_us(tokens) + self._sequences_us(decodes + len(chunks))

    @property
    def largest_graph(self) -> int:
        """Tokens up to which a step is padded, 0 for none."""
        return self._captured[-1] if self._captured else 0

    def _attention(self, chunks: list[tuple[int, int]], decodes: int, context: float) -> float:
        """One layer's attention, prefills and decodes looked up together: apart they take far less than in one batch.

        Several prefills count as one of their sum, corrected by what the single ones take alone.
        """
        look = self.profile.attention
        if len(chunks) < 2:
            tokens, history = chunks[0] if chunks else (0, 0)
            return look(tokens, history, decodes, context)
        total = sum(tokens for tokens, _ in chunks)
        weighted = sum(tokens * history for tokens, history in chunks) / total
        mean = sum(history for _, history in chunks) / len(chunks)
        least = self.profile.least_attention
        alone = sum(look(tokens, history, 0, 0) - least for tokens, history in chunks)
        together = look(total, mean, 0, 0) - least
        return max(look(total, weighted, decodes, context) + alone - together, least)

    def _tokens_us(self, tokens: int) -> float:
        """What depends on nothing but the number of tokens; each number is computed once."""
        known = self._dense.get(tokens)
        if known is None:
            known = self.layers * self.profile.layer(tokens, self.tiles) + self.profile.once(tokens, self.tiles)
            if self._reduce is not None and self._parallel[0] > 1:  # after attention and MLP, and after the embedding
                known += (2 * self.layers + 1) * self._reduce(tokens * self._token_bytes)
            self._dense[tokens] = known
        return known

    def _shared_us(self, gathered: int) -> float:
        """The experts of all layers on one GPU: its share of the tokens of all, over the experts that these hit. Of
        several GPUs also what is gathered before and scattered after them, together an all-reduce of all tokens."""
        assert self._experts is not None and self.profile.moe is not None
        experts, per_token = self._experts
        parallel = self._parallel[1]
        hit = experts / parallel * (1 - (1 - per_token / experts) ** gathered)
        us = self.profile.moe(gathered / parallel, 0, hit, 0)
        if parallel > 1 and self._reduce is not None:
            us += self._reduce(gathered * self._token_bytes)
        return self.layers * us

    def _sequences_us(self, sequences: int) -> float:
        known = self._last.get(sequences)
        if known is None:
            known = self._last[sequences] = self.profile.last(sequences, self.tiles)
        return known

    def _count(self, tokens: int, sequences: int, context: float, chunks: list[tuple[int, int]]) -> None:
        self.timed += 1
        most = self.profile.attention.most
        longest = max([history for _, history in chunks]) if chunks else 0
        if (
            tokens > self.profile.most_tokens
            or sequences > self.profile.most_sequences
            or context > most[3]
            or longest > most[1]
        ):
            self.outside += 1

    def remarks(self) -> list[str]:
        """What is to be said after a run."""
        if not self.outside:
            return self._told
        far = f"{self.outside:,} of {self.timed:,} steps lie outside the profile; their times are extrapolated"
        return [*self._told, far]

    def describe(self) -> dict[str, Any]:
        """The settings; the profile by its folder's name."""
        return {"model": "operators", **{key: value for key, value in self._settings.items() if value is not None}}


def _from_catalog(settings: dict[str, Any], profiled_experts: bool) -> dict[str, Any]:
    """What the catalog says of model and GPU, for settings that are not given. Raises InputError."""
    found: dict[str, Any] = {}
    if settings["gpu"] is not None:
        found["sms"] = catalog.find_gpu(settings["gpu"]).sms
    if settings["llm"] is not None:
        llm = catalog.find_llm(settings["llm"])
        found |= {"layers": llm.layers, "hidden_size": llm.hidden}
        if llm.latent is None:
            found["kv_heads"] = -(-llm.kv_heads // settings["tensor_parallel"])
        if llm.experts is not None:
            if not profiled_experts:
                raise _wrong("llm", settings["llm"], "has experts, of which the profile needs a moe.csv")
            if llm.experts.layers != llm.layers:
                some = f"has experts in {llm.experts.layers} of {llm.layers} layers: here all layers are alike"
                raise _wrong("llm", settings["llm"], some)
            found |= {"experts": llm.experts.count, "experts_per_token": llm.experts.per_token}
    return {key: value for key, value in found.items() if settings[key] is None}


def _wrong(name: str, value: object, expected: str) -> SettingError:
    return SettingError(name, value, expected, section="cost")
