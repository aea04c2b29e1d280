"""Settings as flags of `vllm serve`, by themselves or in a command that somebody pasted."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from batchlab import catalog
from batchlab.policies.vllm import Vllm
from batchlab.redacted import FLAG, outlined, read
from batchlab.settings import LimitSettings, parameters
from batchlab.shell_line import Token
from batchlab.vllm_command import COST, DEFAULTS, OTHERS, SHORT, SWITCHES, WHOLE, known_as, parse, server_in

KEYS = WHOLE | SWITCHES | COST | {flag: flag.replace("-", "_") for flag in OTHERS}
"""Every flag that says a setting, and that setting's own name in [engine] or [cost]."""
SPELLED = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8", "int4": "awq", "mxfp4": "mxfp4"}
"""A kind of number as a flag of vLLM."""
NOT_SPELLED = ("int8",)
"""Kinds that no flag says: they are as the weights were downloaded."""


def flags(settings: Mapping[str, Any], named: Collection[str]) -> dict[str, str]:
    """Settings of [engine], each as a flag of `vllm serve`: what `parse` reads back as these settings.

    named: those to write in any case. Of the others only what is not as vLLM has it. Settings without a flag are left
    out.
    """
    usual = {**{key: p.default for key, p in parameters(Vllm).items()}, **LimitSettings().model_dump(), **DEFAULTS}
    words = {}
    for flag, key in KEYS.items():
        value = settings.get(key)
        if flag in COST or value is None or (key not in named and value == usual.get(key)):
            continue
        words[key] = f"--{'' if value else 'no-'}{flag}" if flag in SWITCHES else f"--{flag} {value}"
    return words


def cost_flags(about: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, str]:
    """What a cost model of GPU and model has, each as a flag, where a command does not say so itself.

    about: its settings as they hold. said: those that a command gives (see `Command.costs`).
    """
    dtype = said.get("dtype", "bf16")
    stored = None
    if about["llm"] in catalog.llm_names():
        stored = catalog.find_llm(about["llm"]).weight_dtype
    usual = {"tensor_parallel": 1, "pipeline_parallel": 1, "dtype": dtype, "kv_dtype": about["dtype"]}
    has = {**usual, "weight_dtype": stored or about["dtype"], **said}
    words = {}
    for flag, key in COST.items():
        value = about[key]
        if key != "llm" and value != has[key] and value not in NOT_SPELLED:
            words[key] = f"--{flag} {SPELLED.get(value, value)}"
    return words


def command_for(about: Mapping[str, Any]) -> str:
    """`vllm serve` with the model of a cost model, under Hugging Face's name where the catalog has that."""
    llm = about.get("llm")
    if llm not in catalog.llm_names():
        return "vllm serve MODEL"
    repository = catalog.repository_of_llm(llm)
    return f"vllm serve {repository if repository and known_as(repository)[0] == llm else llm}"


def said_in(command: str) -> dict[str, Any]:
    """The settings of [engine] that a command says itself."""
    found = parse(command, knows_memory=True, has_blocks=True)
    return {key: value for key, value in found.settings.items() if key not in found.usual}


def rewritten(command: str, changed: Mapping[str, str]) -> str:
    """A command on one line: some flags replaced where they stand or added at its end, all other words as they are.

    changed: by the names of settings, each flag with its value. What looks like a secret is hidden, since the command
    goes into files and pages that are passed on.
    """
    line = read(command, "--from-command")
    line = outlined(line, server_in(line).start)
    server = server_in(line)
    place = server.start
    stop = max(place for place in server if line[place].text is not None) + 1  # before what redirects the output
    parts = [token.raw for token in line[:place]]
    left = dict(changed)
    while place < stop:
        key, length = _read(line[place : min(place + 2, stop)])
        if key not in changed:
            parts += [token.raw for token in line[place : place + length]]
        elif key in left:
            parts.append(left.pop(key))
        place += length
    return " ".join([*parts, *left.values(), *(token.raw for token in line[stop:])])


def _read(words: Sequence[Token]) -> tuple[str | None, int]:
    """The setting that the first word says, if any, and how many words its value makes of it."""
    word, equals, _ = (words[0].text or "").partition("=")
    if not FLAG.match(word):
        return None, 1
    flag = SHORT.get(word, word).lstrip("-").replace("_", "-")
    flag = flag if flag in KEYS else flag.removeprefix("no-")
    value = words[1].text if len(words) > 1 else None
    has_value = not equals and flag not in SWITCHES and value is not None and not FLAG.match(value)
    return KEYS.get(flag), 2 if has_value else 1
