"""The known forms of workload files: their own names for what a request has, and the unit of their times."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """One form of file. names: by our fields; None where the scenario gives them. unit: None likewise.

    rounds: its times are finer than a nanosecond, since whoever writes it adds floats up.
    """

    container: str
    names: Mapping[str, str] | None = None
    unit: str | None = None
    rounds: bool = False

    @property
    def own(self) -> bool:
        """Whether the form itself says what its columns are."""
        return self.names is not None

    @property
    def timed(self) -> bool:
        """Whether it has arrivals."""
        return self.names is None or "arrival" in self.names


AZURE = {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}
MOONCAKE = {"arrival": "timestamp", "prompt": "input_length", "output": "output_length", "hash_ids": "hash_ids"}
BURSTGPT = {"arrival": "Timestamp", "prompt": "Request tokens", "output": "Response tokens"}
VIDUR = {"arrival": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}
SARATHI = {"prompt": "num_prefill_tokens", "output": "num_decode_tokens"}
LLMSERVINGSIM = {"arrival": "arrival_time_ns", "prompt": "input_toks", "output": "output_toks"}
VLLM_BENCH = {"arrival": "start_times", "prompt": "input_lens", "output": "output_lens"}

FORMATS = {
    "azure": Format("csv", AZURE, "stamp"),
    "burstgpt": Format("csv", BURSTGPT, "s"),
    "vidur": Format("csv", VIDUR, "s"),
    "sarathi": Format("csv", SARATHI),
    "mooncake": Format("jsonl", MOONCAKE, "ms"),
    "llmservingsim": Format("jsonl", LLMSERVINGSIM, "ns"),
    "vllm-bench": Format("lists", VLLM_BENCH, "s", rounds=True),
    "csv": Format("csv"),
    "jsonl": Format("jsonl"),
    "parquet": Format("parquet"),
}
MAPPED = tuple(name for name, format in FORMATS.items() if not format.own)
