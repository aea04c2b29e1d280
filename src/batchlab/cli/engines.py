"""batchlab engines."""

import inspect
import sys
from typing import Any

import click

from batchlab import policies
from batchlab.cli.documents import print_json
from batchlab.cli.prose import print_words
from batchlab.cli.tables import console
from batchlab.policies.base import Policy

INTRODUCTION = """# Engines

Made by `./batchlab engines --markdown` from the policies' own files, one file an engine, in `src/batchlab/policies/`.

## The same word means different things

| here | means | others say |
|---|---|---|
| iteration, step | one forward pass over a batch | forward, pass, round |
| iteration-level scheduling | the batch is decided anew in each iteration | continuous batching; in-flight batching (NVIDIA) |
| request-level dynamic batching | queued requests are grouped before they run, then run to the end together | dynamic batching (Triton); llama.cpp's help uses the word for continuous batching |
| prefill, decode | processing the input, and one token after another | context and generation (TensorRT-LLM); extend (SGLang) |
| chunked prefill | a prompt spread over iterations | chunked context (TensorRT-LLM) |
| token budget | `max_num_batched_tokens` | `max_num_tokens` (TensorRT-LLM), `chunked_prefill_size` (SGLang), `n_batch` (llama.cpp) |
| sequence cap, seats | `max_num_seqs` | `max_batch_size`, `max_running_requests`, slots |
| KV block | a block of KV cache slots | page; `tokens_per_block` |
| preemption | a started request is taken off the batch: keep, recompute or swap | retract (SGLang), pause (TensorRT-LLM); eviction also means removal from a prefix cache |
| priority | lower is more urgent, as in vLLM | Triton: 1 is highest; gateways: higher goes first |
"""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.option("--markdown", is_flag=True, help="Print docs/engines.md: all rules, settings and what is not modelled.")
def engines(as_json: bool, markdown: bool) -> None:
    """List the policies: whose rules they follow, and their settings."""
    found = {name: policies.find(name) for name in policies.names()}
    if markdown:
        print(INTRODUCTION, end="")
        for name, policy in found.items():
            print(f"\n## `{name}`: {policy.rules}\n\n{_text(sys.modules[policy.__module__])}\n\n{_text(policy)}")
            print(f"\nSettings: {', '.join(f'`{setting}`' for setting in policies.settings_of(policy))}.")
    elif as_json:
        listed = [
            {"name": n, "rules": p.rules, "about": _first_line(p), "settings": policies.settings_of(p)}
            for n, p in found.items()
        ]
        print_json({"engines": listed})
    else:
        columns = {
            "policy": list(found),
            "rules": [policy.rules for policy in found.values()],
            "what it does": [_first_line(policy) for policy in found.values()],
        }
        print_words(console(), columns)


def _text(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _first_line(policy: type[Policy]) -> str:
    return _text(policy).partition("\n")[0]
