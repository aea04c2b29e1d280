"""A pasted `vllm serve ...` command line as settings."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from batchlab.errors import InputError, nearest
from batchlab.policies.vllm import Vllm
from batchlab.settings import LimitSettings, parameters

WHOLE = {
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "long-prefill-token-threshold": "long_prefill_token_threshold",
    "block-size": "block_size",
    "num-gpu-blocks-override": "num_gpu_blocks",
    "max-model-len": "max_model_len",
    "max-num-queued-reqs": "max_num_queued_reqs",
    "max-num-queued-tokens": "max_num_queued_tokens",
}
SWITCHES = {
    "enable-chunked-prefill": "enable_chunked_prefill",
    "enable-prefix-caching": "enable_prefix_caching",
    "async-scheduling": "async_scheduling",
    "scheduler-reserve-full-isl": "scheduler_reserve_full_isl",
    "long-prefill-token-threshold-adaptive": "long_prefill_token_threshold_adaptive",
}
COST = {
    "model": "llm",
    "dtype": "dtype",
    "quantization": "weight_dtype",
    "kv-cache-dtype": "kv_dtype",
    "tensor-parallel-size": "tensor_parallel",
    "pipeline-parallel-size": "pipeline_parallel",
}
"""Flags that say what a step costs, and the keys of [cost] that do here."""
SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-q": "--quantization"}
DEFAULTS = {"enable_prefix_caching": True, "async_scheduling": True}
"""vLLM's defaults on a GPU, where ours differ."""
MEMORY = frozenset({"num_gpu_blocks", "gpu_memory_utilization"})
"""Settings of [engine] that say how many KV blocks there are."""
OTHERS = {"scheduling-policy": str, "watermark": float, "gpu-memory-utilization": float}
SIZES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
"""vLLM's suffixes for lengths: small letters are decimal, capitals binary."""


@dataclass(frozen=True)
class Command:
    """settings: of [engine], by their names there. cost: what it says of model and GPUs, which [cost] says here, by its
    keys there. unknown: flags that say nothing here."""

    settings: dict[str, Any]
    cost: dict[str, str]
    unknown: list[str]


def parse(text: str, knows_memory: bool = False, has_blocks: bool = False) -> Command:
    """Read a command line such as `vllm serve MODEL --max-num-seqs 256`. Raises InputError.

    What the command leaves out and DEFAULTS has is set as vLLM sets it; the other settings stay as they are.
    knows_memory: whether the cost model can make KV blocks of --gpu-memory-utilization. has_blocks: whether the
    scenario says itself how many there are.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise InputError("--from-command", None, text, f"cannot be read as a command line: {error}") from error
    while words and words[0] != "serve" and not words[0].startswith("--"):  # environment, vllm, python -m ...
        words.pop(0)
    if not words:
        raise InputError("--from-command", None, text, "must be a command such as: vllm serve MODEL --max-num-seqs 256")
    settings: dict[str, Any] = {}
    cost: dict[str, str] = {}
    unknown: list[str] = []
    if words[0] == "serve" and len(words) > 1 and not words[1].startswith("-"):
        cost["llm"] = words[1]
    while words:
        word = words.pop(0)
        word = SHORT.get(word, word)
        if word.startswith("--"):
            _flag(word, words, settings, cost, unknown)
    if not knows_memory and settings.pop("gpu_memory_utilization", None) is not None:
        unknown.append("--gpu-memory-utilization (needs a cost model that knows GPU and model, such as roofline)")
    for key, value in DEFAULTS.items():
        settings.setdefault(key, value)
    if not has_blocks and not MEMORY & settings.keys():
        del settings["enable_prefix_caching"]  # there are no blocks to cache in
    return Command(settings, cost, unknown)


def flags(settings: Mapping[str, Any], named: Collection[str]) -> list[str]:
    """Settings of [engine] as flags of `vllm serve`: what `parse` reads back as these settings.

    named: those to write in any case. Of the others only what is not as vLLM has it. Settings without a flag are left
    out.
    """
    spelled = {own: flag for flag, own in (WHOLE | SWITCHES).items()} | {own.replace("-", "_"): own for own in OTHERS}
    usual = {**{key: p.default for key, p in parameters(Vllm).items()}, **LimitSettings().model_dump(), **DEFAULTS}
    words = []
    for key, flag in spelled.items():
        value = settings.get(key)
        if value is None or (key not in named and value == usual.get(key)):
            continue
        words.append(f"--{'' if value else 'no-'}{flag}" if key in SWITCHES.values() else f"--{flag} {value}")
    return words


def _flag(word: str, words: list[str], settings: dict[str, Any], cost: dict[str, str], unknown: list[str]) -> None:
    flag, equals, value = word[2:].partition("=")
    flag = flag.replace("_", "-")
    positive = flag.removeprefix("no-")
    if positive in SWITCHES:
        settings[SWITCHES[positive]] = positive == flag
        return
    if not equals and words and not words[0].startswith("--"):
        value = words.pop(0)
    if flag in WHOLE:
        settings[WHOLE[flag]] = _whole(flag, value)
    elif flag in COST:
        cost[COST[flag]] = value
    elif flag in OTHERS:
        try:
            settings[flag.replace("-", "_")] = OTHERS[flag](value)
        except ValueError as error:
            raise InputError(f"--from-command --{flag}", None, value, "must be a number") from error
    else:
        unknown.append(f"--{flag}{nearest(flag, (*WHOLE, *SWITCHES, *OTHERS, *COST))}")


def _whole(flag: str, value: str) -> int:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmM]?)", value)
    if match is None or (match[2] == "" and "." in match[1]):
        raise InputError(f"--from-command --{flag}", None, value, "must be a whole number, such as 2048 or 2k")
    number = Fraction(match[1]) * SIZES.get(match[2], 1)
    if number.denominator != 1:
        raise InputError(f"--from-command --{flag}", None, value, "must be a whole number, such as 2048 or 2k")
    return int(number)
