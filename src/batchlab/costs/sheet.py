"""A cost model on one page: what typical steps take and why, and what it makes of the GPU's memory."""

from typing import Any

from batchlab.core.work import Work
from batchlab.costs.base import CostModel
from batchlab.costs.roofline import Roofline

DECODES = (1, 8, 32, 128)
CONTEXT = 1024
PREFILLS = (512, 2048, 8192)


def decodes(sequences: int, context: int) -> Work:
    """A step of decodes that each have `context` tokens after it."""
    work = Work()
    work.decode_tokens = work.samples = sequences
    work.contexts = [context] * sequences
    work.context_tokens = sequences * context
    return work


def prefill(tokens: int) -> Work:
    """A step of one whole prompt."""
    work = Work()
    work.prefill_tokens = work.context_tokens = work.prefill_context = tokens
    work.samples = 1
    work.chunks = [(tokens, 0)]
    return work


def typical_steps(model: CostModel) -> list[dict[str, Any]]:
    """Duration of each typical step; its terms and the largest of them where the model has terms."""
    works = {f"decode {n} x {CONTEXT:,}": decodes(n, CONTEXT) for n in DECODES}
    works |= {f"prefill {tokens:,}": prefill(tokens) for tokens in PREFILLS}
    found = []
    for name, work in works.items():
        tokens = work.prefill_tokens + work.decode_tokens
        entry: dict[str, Any] = {"step": name, "tokens": tokens, "duration": model.duration(work)}
        if isinstance(model, Roofline):
            terms = model.breakdown(work)
            entry |= {"binds": max(terms, key=lambda term: terms[term]), "terms": terms}
        found.append(entry)
    return found


def sizes(
    model: Roofline, utilization: float, block_size: int, step_tokens: int, given: int | None = None
) -> dict[str, Any]:
    """The model's size, and one GPU's memory in bytes, for an engine with these settings.

    given: the KV blocks that the engine has whatever fits; None where it counts them.
    """
    memory = model.memory(utilization, step_tokens)
    blocks = memory.blocks(block_size)
    return {
        "parameters": model.llm.parameters,
        "active_parameters": model.llm.active_parameters,
        "gpus": model.settings["tensor_parallel"] * model.settings["pipeline_parallel"],
        "gpu_memory_utilization": utilization,
        "max_num_batched_tokens": step_tokens,
        "usable_bytes": round(memory.total),
        "weight_bytes": round(memory.weights),
        "reserve_bytes": round(memory.reserve),
        "kv_bytes_per_token": round(memory.kv_token),
        "block_size": block_size,
        "num_gpu_blocks": blocks,
        "given_num_gpu_blocks": given,
        "shortage": None if blocks else model.shortage(utilization, step_tokens, block_size),
    }
