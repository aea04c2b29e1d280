"""Writes docs/ladder.md: every engine on the same load, cost model and GPU memory.

Run: .venv/bin/python docs/ladder.py
"""

from pathlib import Path
from typing import Any

from batchlab import Summary, load, simulate

HERE = Path(__file__).parent
SCENARIO = HERE.parent / "examples" / "ladder.toml"
TOKENS = 16_000
LONGEST = 2_048
SLOTS = TOKENS // LONGEST  # for engines that set memory for the longest request aside for each slot
BLOCKS = TOKENS // 16
SEATS = {"engine.max_num_seqs": SLOTS}
TRT = {"max_batch_size": 256, "max_num_tokens": 2048, "tokens_per_block": 16, "num_blocks": BLOCKS}

ENGINES: list[tuple[str, str, dict[str, Any]]] = [
    ("static, padded to the longest of all", "static", {**SEATS, "engine.padding": "all"}),
    ("static, padded to its own longest", "static", {**SEATS, "engine.padding": "batch"}),
    ("FasterTransformer", "fastertransformer", {"engine.max_bs": SLOTS}),
    ("Triton dynamic batcher", "triton", {"engine.max_batch_size": SLOTS}),
    ("Triton iterative sequences", "triton-iterative", {"engine.max_batch_size": SLOTS}),
    ("Orca, max_tokens reserved", "orca", {"engine.max_bs": 256, "engine.n_slots": TOKENS}),
    ("TensorRT-LLM GUARANTEED_NO_EVICT", "tensorrt-llm", {f"engine.{key}": value for key, value in TRT.items()}),
    (
        "TensorRT-LLM MAX_UTILIZATION, chunked",
        "tensorrt-llm",
        {f"engine.{key}": value for key, value in TRT.items()}
        | {"engine.capacity_scheduler_policy": "MAX_UTILIZATION", "engine.enable_chunked_context": True},
    ),
    ("vLLM V0", "vllm-v0", {"engine.num_gpu_blocks": BLOCKS}),
    ("vLLM V1", "vllm", {}),
    ("vLLM V1, budget 512", "vllm", {"engine.max_num_batched_tokens": 512}),
]

PAGE = f"""# The ladder: one load, every engine

Made by `.venv/bin/python docs/ladder.py`. All engines serve the 400 requests of `examples/ladder.csv` (mean prompt 283, mean
output 163 tokens, max_tokens 640, about 8 requests a second) under one linear cost of round numbers and with KV memory for
{TOKENS:,} tokens, so that a difference between two rows is the scheduler's. Times are those of the cost model, no GPU's.

Memory is used as each engine does: static batching, FasterTransformer and Triton set {LONGEST:,} tokens aside for each slot, which
gives {SLOTS} slots; Orca and GUARANTEED_NO_EVICT count on prompt and max_tokens; MAX_UTILIZATION and vLLM take blocks of 16 as
they are needed, and preempt where that was too much. Sarathi-Serve is not here: its paper's rules say nothing of memory; vLLM V1
schedules as it does, with memory.

| engine | requests/s | output tokens/s | TTFT mean, s | TTFT P99, s | ITL P50, ms | ITL P99, ms | slot waste | padding tokens | preemptions | recomputed tokens |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""

READING = f"""
How to read it:

- Down to the iterative row only {SLOTS} requests run at once, and the queue grows: TTFT is waiting. Padding to the longest of all
  carries ended requests on and on, after a wait for the last arrival; to the batch's own longest, until the slowest member ends.
- FasterTransformer computes together only as many prompt tokens as its shortest prompt has, the rest one a step: long prompts
  cost as many steps as tokens.
- The gaps (ITL) of batches that nobody joins are short, because no prompt runs between their decodes.
- About 6.5 requests/s is all that was offered (400 requests in 61 s): the rows that reach it differ in latency, and their engines
  could do more. MAX_UTILIZATION and vLLM V1 are equal here because no prompt is longer than the budget and memory is seldom short.
- Deciding anew in each iteration refills slots (Triton iterative against static), and giving memory by need instead of by the
  longest possible request lets several times as many run (Orca, then blocks).
- Slot waste is the share of seats that a batch carried without an output token: members that have ended, prompts not yet
  computed, and, under V0, decodes that wait for prompts.
- Preemptions and recomputed tokens are the price of not reserving.
- A smaller budget cuts the long gaps (ITL P99) and makes prompts wait longer (TTFT).
- V0 runs prompts alone: decodes stand still meanwhile, so its ITL P99 is a prompt's time.
"""


def row(label: str, policy: str, settings: dict[str, Any]) -> str:
    """One engine's line of the table."""
    (run,) = load(SCENARIO, settings, [policy]).runs
    summary, padding = Summary(), [0]

    def pad(event: Any) -> None:
        padding[0] += getattr(event, "padding", 0)

    simulate(run, [summary, pad])
    found = summary.document(with_requests=False)
    latency, totals, rates = found["latency"], found["totals"], found["throughput"]
    return (
        f"| {label} | {rates['request_rate']:.2f} | {rates['output_token_rate']:,.0f} "
        f"| {latency['ttft']['mean'] / 1e9:,.2f} | {latency['ttft']['p99'] / 1e9:,.2f} "
        f"| {latency['itl']['p50'] / 1e6:,.1f} | {latency['itl']['p99'] / 1e6:,.1f} "
        f"| {100 * found['slots']['waste']:.1f} % | {padding[0]:,} "
        f"| {totals['preemptions']:,} | {totals['recomputed_tokens']:,} |\n"
    )


def page() -> str:
    """The whole page."""
    return PAGE + "".join(row(*engine) for engine in ENGINES) + READING


if __name__ == "__main__":
    (HERE / "ladder.md").write_text(page(), encoding="utf-8")
