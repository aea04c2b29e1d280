"""A pasted `vllm serve ...` command line as settings."""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, takewhile
from typing import Any

from batchlab.catalog import llm_names
from batchlab.errors import InputError, nearest
from batchlab.policies.vllm import Vllm
from batchlab.redacted import outlined, read
from batchlab.settings import share_of_memory
from batchlab.shell_line import Token, commands

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
COST_FLAGS = {own: flag for flag, own in COST.items()}
PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size")
SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-q": "--quantization",
    "-cc": "--compilation-config",
}
DEFAULTS = {"enable_prefix_caching": True, "async_scheduling": True}
"""vLLM's defaults on a GPU, where ours differ."""
UTILIZATION = 0.92
"""vLLM's default of gpu_memory_utilization (config/cache.py of 0.32.0)."""
MEMORY = frozenset({"num_gpu_blocks", "gpu_memory_utilization"})
"""Settings of [engine] that say how many KV blocks there are."""
MATTERS = (
    *("config", "speculative-config", "data-parallel-size", "enable-expert-parallel", "decode-context-parallel-size"),
    *("kv-transfer-config", "kv-offloading-size", "kv-cache-memory-bytes", "cpu-offload-gb", "enforce-eager"),
    *("max-num-partial-prefills", "max-long-partial-prefills", "enable-lora", "runner", "scheduler-cls", "VLLM_USE_V1"),
    "compilation-config.cudagraph_mode=NONE",
)
"""Flags that are not modelled although they change who runs when, how long steps take or how many blocks there are."""
DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8"),
    **dict.fromkeys(("int4", "awq", "awq_marlin", "gptq", "gptq_marlin", "w4a16", "quantized.w4a16"), "int4"),
    **dict.fromkeys(("int8", "w8a8", "quantized.w8a8"), "int8"),
    "mxfp4": "mxfp4",
}
"""What vLLM's flags and the names of models call a kind of number, as [cost] does."""
PLAIN = ("float", "float32")
"""Kinds of numbers that vLLM takes and [cost] does not."""
FORM = re.compile(r"instruct|it|chat|base|hf|thinking|dynamic|v\d+(\.\d+)?|\d{4}")
"""Parts of a model's name that say nothing of its shape."""
RULES = Vllm.rules.removeprefix("vLLM ")
VARIABLE = re.compile(r"(?:--env=|-e)?(VLLM_\w+)\+?=(?s:.*)")
IMAGE = re.compile(r"\S*vllm-openai[\w-]*(?::v?(?P<version>\d+(?:\.\d+)+\w*)|[:@]\S+)?\S*")
NO_GRAPHS = re.compile(r"cudagraph[-_]mode\W+NONE\b", re.IGNORECASE)
"""Steps are launched kernel by kernel then, as with --enforce-eager."""
OTHERS = {"scheduling-policy": str, "watermark": float, "gpu-memory-utilization": float}
MOST_ALIKE = 100
"""For so many unknown flags a known one is looked for that is like it: no real command has more."""
SIZES = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
"""vLLM's suffixes for lengths: small letters are decimal, capitals binary."""


@dataclass(frozen=True)
class Command:
    """settings: of [engine], by their names there. cost: what it says of model and GPUs, as it says it, by the keys of
    [cost]. usual: settings that it leaves out, and that are as vLLM has them. unknown: flags that say nothing here.
    matters: flags that are not modelled and change the engine."""

    settings: dict[str, Any]
    cost: dict[str, str]
    usual: list[str]
    unknown: list[str]
    matters: list[str]

    def costs(self) -> dict[str, Any]:
        """What it says of model and GPUs as [cost] would; left out is what [cost] has no word for."""
        llm, stored = known_as(self.cost.get("llm", ""))
        said: dict[str, Any] = {
            key: int(value) if COST_FLAGS[key] in PARALLEL else DTYPES.get(value.lower())
            for key, value in self.cost.items()
        }
        said["llm"] = llm
        said["weight_dtype"] = said.get("weight_dtype") or stored
        return {key: value for key, value in said.items() if value is not None}


def parse(text: str, knows_memory: bool = False, has_blocks: bool = False) -> Command:
    """Read a command line such as `vllm serve MODEL --max-num-seqs 256`. Raises InputError.

    What the command leaves out and DEFAULTS has is set as vLLM sets it; the other settings stay as they are.
    knows_memory: whether the cost model can make KV blocks of --gpu-memory-utilization. has_blocks: whether the
    scenario says itself how many there are.
    """
    found = read(text, "--from-command")  # whatever is said of it has no secrets then
    server = server_in(found)
    words = [word for place in server if (word := found[place].text) is not None]
    settings: dict[str, Any] = {}
    cost: dict[str, str] = {}
    unknown: list[str] = []
    serves = words[0] == "serve" or IMAGE.fullmatch(found[server.start - 1].text or "" if server.start else "")
    rest = deque(words[1:] if words[0] == "serve" else words)
    while rest:
        word, equals, value = rest.popleft().partition("=")
        head, dot, member = word.partition(".")
        word = SHORT.get(head, head) + dot + member + equals + value
        if re.match("--?[A-Za-z]", word):
            _flag(word, rest, settings, cost, unknown)
        elif serves:
            cost.setdefault("llm", word)
    before = _environment(token.text or "" for token in found[: server.start])
    unknown += [name for name in before if name not in MATTERS]
    behind = [token.text or "" for token in found[server.stop :]]
    if any(word == "serve" and vllm.endswith("vllm") for vllm, word in pairwise(behind)):
        unknown.append("another `vllm serve` behind it")
    program = (found[server.start - 1].text or "") if server.start else ""
    if words[0] == "serve" and re.fullmatch(r"\w[\w./-]*", program) and "vllm" not in program:
        unknown.append(f"`{program} serve`, which is read as vLLM's")
    if not knows_memory and settings.pop("gpu_memory_utilization", None) is not None:
        unknown.append("--gpu-memory-utilization (needs a cost model that knows GPU and model, such as roofline)")
    has_blocks = has_blocks or bool(MEMORY & settings.keys())
    usual: dict[str, Any] = dict(DEFAULTS)
    if knows_memory and not has_blocks:
        usual["gpu_memory_utilization"] = UTILIZATION
    elif not has_blocks:  # there are no blocks to cache in
        settings.pop("enable_prefix_caching", None)
        del usual["enable_prefix_caching"]
    usual = {key: value for key, value in usual.items() if key not in settings}
    matters = [flag for flag in unknown if _matters(flag)] + [name for name in before if name in MATTERS]
    unknown = [flag for flag in unknown if not _matters(flag)]
    return Command(settings | usual, cost, list(usual), unknown, matters)


def _matters(flag: str) -> bool:
    own = flag.removeprefix("--")
    return own in MATTERS or own.partition(".")[0] in MATTERS


def _environment(words: Iterable[str]) -> list[str]:
    """Variables of vLLM's, by name, and an image of another version."""
    found = []
    for word in words:
        if (variable := VARIABLE.fullmatch(word)) is not None:
            found.append(variable[1])
        elif (
            (image := IMAGE.fullmatch(word)) is not None
            and image["version"]
            and _version(image["version"]) != _version(RULES)
        ):
            found.append(f"the image's version {image['version']} (rules and defaults are those of {RULES})")
    return found


def _version(text: str) -> str:
    """As it is compared: 0.32 is 0.32.0."""
    return re.sub(r"(?:\.0+)+(?=[^.\d]|$)", "", text)


def server_in(found: Sequence[Token]) -> range:
    """Where in a line the server's command stands, from `serve` on, or from its first flag. Raises InputError."""
    every = [(each, [found[place].text or "" for place in each]) for each in commands(found)]
    best = _server_among([one for one in every if not _prints(one[1])]) or _server_among(every)
    if best is None:
        expected = "must be a command such as: vllm serve MODEL --max-num-seqs 256"
        raise InputError("--from-command", None, " ".join(token.raw for token in outlined(found)), expected)
    return best


def _prints(words: Sequence[str]) -> bool:
    """Whether a command only says something, and be it how vLLM is called."""
    return any(word in ("echo", "printf") for word in takewhile(lambda word: "vllm" not in word, words))


def _server_among(candidates: Sequence[tuple[range, Sequence[str]]]) -> range | None:
    """Where in some of a line's commands, each with its words, the server's stands, if in any. Raises InputError."""
    best: range | None = None
    for each, words in candidates:
        if "serve" in words:
            serve = words.index("serve")
            if "bench" in words[:serve]:
                expected = "is a client's: must be the server's, vllm serve MODEL ..."
                raise InputError("--from-command", None, "bench serve", expected)
            ours = (at for at in range(1, len(words)) if words[at] == "serve" and words[at - 1].endswith("vllm"))
            if (at := next(ours, None)) is not None:
                return each[at:]
            best = best or each[serve:]
    if best is None:  # environment, python -m ..., docker run ... IMAGE
        flagged = (
            each[first:]
            for begins in (_follows_image, _is_flag)
            for each, words in candidates
            for first in range(len(each))
            if begins(words, first)
        )
        best = next(flagged, None)
    return best


def _follows_image(words: Sequence[str], place: int) -> bool:
    return place > 0 and IMAGE.fullmatch(words[place - 1]) is not None


def _is_flag(words: Sequence[str], place: int) -> bool:
    return words[place].startswith("--")


def batch_defaults(gpu: str | None, memory_gib: float, settings: Mapping[str, Any]) -> dict[str, int]:
    """How large vLLM 0.32.0 makes the batch of an OpenAI server on such a GPU where nobody says it.

    settings: what is said of the rest. Source: engine/arg_utils.py.
    """
    if memory_gib >= 160:
        tokens, seqs = 16384, 1024
    elif memory_gib >= 70 and "a100" not in (gpu or "").lower():
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    longest = settings.get("max_model_len")
    if longest is not None:
        if settings.get("enable_chunked_prefill") is False:
            tokens = max(tokens, longest)
        tokens = min(tokens, settings.get("max_num_seqs", seqs) * longest)
    return {"max_num_seqs": min(seqs, settings.get("max_num_batched_tokens", tokens)), "max_num_batched_tokens": tokens}


def known_as(model: str) -> tuple[str | None, str | None]:
    """The catalog's name for a model of Hugging Face, and how its name says that its weights are stored."""
    own = model.rpartition("/")[2].lower().removeprefix("meta-")
    for name in sorted(llm_names(), key=len, reverse=True):
        if own == name or own.startswith(f"{name}-"):
            parts = own[len(name) + 1 :].split("-") if own != name else []
            stored = [DTYPES[part] for part in parts if part in DTYPES]
            if all(part in DTYPES or FORM.fullmatch(part) for part in parts):
                return name, stored[-1] if stored else None
    return None, None


def _flag(word: str, words: deque[str], settings: dict[str, Any], cost: dict[str, str], unknown: list[str]) -> None:
    flag, equals, value = word.partition("=")
    if not flag.startswith("--"):
        unknown.append(flag)
        return
    flag = flag[2:].replace("_", "-")
    positive = flag.removeprefix("no-")
    if positive in SWITCHES:
        if equals or (words and words[0].lower() in ("true", "false")):
            expected = f"takes no value: --{positive} or --no-{positive}"
            raise InputError(f"--from-command --{flag}", None, value if equals else words[0], expected)
        settings[SWITCHES[positive]] = positive == flag
        return
    if not equals and words and not re.match("--?[A-Za-z]", words[0]):
        value = words.popleft()
    if flag == "max-model-len" and value in ("auto", "-1"):
        unknown.append(f"--{flag} {value} (as much as fits into memory)")
    elif flag in WHOLE:
        settings[WHOLE[flag]] = _whole(flag, value)
    elif flag in COST:
        if value == "":
            raise InputError(f"--from-command --{flag}", None, None, "needs a value")
        if flag in PARALLEL and not (re.fullmatch("[0-9]{1,6}", value) and int(value) > 0):
            raise InputError(f"--from-command --{flag}", None, value, "must be a whole number from 1 on")
        if flag == "dtype" and value.lower() not in {"auto", *DTYPES, *PLAIN}:
            expected = f"must be one of auto, {', '.join(('bfloat16', 'float16', 'half', *PLAIN))}"
            raise InputError(f"--from-command --{flag}", None, value, expected + nearest(value, (*DTYPES, *PLAIN)))
        if value != "auto":
            cost[COST[flag]] = value
    elif flag in OTHERS:
        try:
            settings[flag.replace("-", "_")] = OTHERS[flag](value)
        except ValueError as error:
            raise InputError(f"--from-command --{flag}", None, value, "must be a number") from error
        if flag == "gpu-memory-utilization":
            _share(flag, settings["gpu_memory_utilization"])
    elif flag.startswith("compilation-config") and NO_GRAPHS.search(f"{flag}={value}"):
        unknown.append("--compilation-config.cudagraph_mode=NONE")
    else:
        looked = flag not in MATTERS and len(unknown) < MOST_ALIKE
        like = "" if not looked else nearest(flag, (*WHOLE, *SWITCHES, *OTHERS, *COST))
        unknown.append(f"--{flag}{like}")


def _share(flag: str, value: float) -> None:
    try:
        share_of_memory(value)
    except ValueError as error:
        raise InputError(f"--from-command --{flag}", None, value, str(error)) from error


def _whole(flag: str, value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)([kKmM]?)", value)
    if match is None or (match[2] == "" and "." in match[1]):
        raise InputError(f"--from-command --{flag}", None, value, "must be a whole number, such as 2048 or 2k")
    number = Fraction(match[1]) * SIZES.get(match[2], 1)
    if number.denominator != 1:
        raise InputError(f"--from-command --{flag}", None, value, "must be a whole number, such as 2048 or 2k")
    return int(number)
