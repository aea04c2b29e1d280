"""What is measured: each case is a scenario of this folder with a policy and settings, or a file that is read."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"

RATE = "workload.generate.request_rate"
LONG = {
    "workload.generate.prompt": {
        "distribution": "lognormal", "mean": 1500, "sigma": 0.8, "max": 8000, "outside": "clip",
    },
    "workload.generate.output": {
        "distribution": "lognormal", "mean": 200, "sigma": 0.8, "max": 2000, "outside": "clip",
    },
}  # fmt: skip
FEW_BLOCKS = {RATE: 190, "engine.num_gpu_blocks": 4_001}


@dataclass(frozen=True)
class Case:
    """One measurement. what: `run`, `trace` (run and write every iteration), `table` (results as Parquet), `csv` or
    `parquet` (read a file). few: requests of the same load for the plain reference."""

    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    policy: str | None = None
    scenario: str = "steady.toml"
    count: int = 20_000
    few: int = 2_000
    what: str = "run"


CASES = {
    "saturated": Case("saturated: far more than it can serve", {RATE: 2_000}),
    "steady-20k": Case("80 % load"),
    "steady-200k": Case("80 % load, 200,000 requests", count=200_000),
    "steady-2M": Case("80 % load, 2 million requests", count=2_000_000),
    "half": Case("half of that load", {RATE: 95}),
    "idle": Case("near idle, 2 requests/s", {RATE: 2}, few=500),
    "long-saturated": Case("long prompts, saturated", {**LONG, RATE: 2_000, "engine.num_gpu_blocks": 40_001}),
    "long": Case("long prompts, 80 % load", {**LONG, RATE: 74, "engine.num_gpu_blocks": 40_001}),
    "overload": Case("overload, a quarter of the KV blocks: preemptions", FEW_BLOCKS),
    "overload-priority": Case("the same by priority, two classes", scenario="priority.toml"),
    "sessions": Case("prefix caching, sessions", scenario="sessions.toml"),
    "async": Case("asynchronous scheduling", {"engine.async_scheduling": True}),
    "user-fcfs": Case("your own policy: fcfs by bulk verbs", policy=f"{HERE / 'fcfs.py'}:Fcfs"),
    "user-shortest": Case(
        "your own policy: shortest prompt first", policy=f"{EXAMPLES / 'shortest_prompt_first.py'}"
    ),
    "chunked": Case("chunked", {"engine.prefill_chunk": 512}, "chunked"),
    "continuous": Case("continuous", {RATE: 95}, "continuous"),
    "decode-first": Case("decode-first", {"engine.prefill_chunk": 512}, "decode-first"),
    "sarathi": Case("sarathi", {"engine.token_budget": 2048}, "sarathi"),
    "latency-aware": Case("latency-aware", {"engine.target_itl": 20_000_000}, "latency-aware", few=500),
    "vllm-v0": Case("vllm-v0", {RATE: 95}, "vllm-v0"),
    "tensorrt-llm": Case("tensorrt-llm", {}, "tensorrt-llm", count=5_000, few=1_000),
    "orca": Case("orca", {RATE: 95, "engine.max_bs": 256, "engine.n_slots": 256_000}, "orca", count=5_000, few=1_000),
    "static": Case("static", {RATE: 40}, "static"),
    "fastertransformer": Case(
        "fastertransformer", {RATE: 20, "engine.max_bs": 256}, "fastertransformer", count=5_000, few=1_000
    ),
    "triton": Case("triton", {RATE: 40, "engine.max_batch_size": 256}, "triton", count=5_000, few=1_000),
    "triton-iterative": Case(
        "triton-iterative", {RATE: 95, "engine.max_batch_size": 256}, "triton-iterative", count=5_000, few=1_000
    ),
    "trace": Case("80 % load, trace written", what="trace", count=5_000),
    "table": Case("results written as Parquet", what="table", count=200_000),
    "csv": Case("CSV read, 2 million rows", what="csv", count=2_000_000),
    "parquet": Case("Parquet read, 2 million rows", what="parquet", count=2_000_000),
}  # fmt: skip
