"""A model's shape from its Hugging Face config.json. Families name the same things differently; here they meet."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchlab.catalog.llm import Llm
from batchlab.errors import InputError
from batchlab.files import read_text
from batchlab.settings import MOST_TOKENS, validate

UNGATED = (
    *("opt", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "bloom", "falcon", "mpt", "phi", "starcoder2"),
    "nemotron",
)
"""Families whose feed-forward part has two matrices."""
TIED = ("opt", "gpt2", "gpt_bigcode", "gpt_neo", "bloom", "mpt", "starcoder2", "cohere", "cohere2")
"""Families that share embedding and output matrix where the file does not say; and all of Gemma."""
FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2, "cohere2": 4}
"""Families of which every so many layers have no sliding window, where the file does not say."""
LEARNED_POSITIONS = {"opt": 2, "gpt2": 0, "gpt_bigcode": 0, "gpt_neo": 0}
"""Families with learned position vectors, and how many they have beyond their longest input."""
STORED = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4"}
"""`quant_method` -> how weights are stored."""
MOST_LAYERS = 10_000
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
WIDTHS = ("intermediate_size", "intermediate_size_mlp", "ffn_dim", "n_inner", "ffn_hidden_size")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_top_k")
LATENT = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
"""What latent attention (DeepSeek) needs beside its rank."""
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention", "global")
"""`layer_types` that are attention; in chunks counts as full."""
NOT_ATTENTION = ("mamba", "ssm_", "rwkv", "linear_num", "lru_width", "conv_kernel")
"""What keys begin with where layers are no attention."""


def read_config(path: Path) -> Llm:
    """The model of a config.json. Raises InputError: unreadable, a key missing, layers that are no attention."""
    text = read_text(path, "a model is given by its config.json")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(path, None, None, f"not valid JSON: {error}") from error
    try:
        return shape(config)
    except InputError as error:
        error.file = str(path)
        raise


def shape(config: Any) -> Llm:
    """The model that a config describes. Raises InputError, without a file."""
    if not isinstance(config, Mapping):
        raise InputError(None, None, config, "must be an object, as a model's config.json is")
    keys = _Keys(config)
    quantization = keys.get("quantization_config")
    for name in ("text_config", "llm_config", "language_config"):  # the language model inside one that also sees
        if isinstance(config.get(name), Mapping):
            keys = _Keys(config[name], f"{name}.")
            quantization = keys.get("quantization_config") or quantization
    odd = next((key for key in keys.config if key.startswith(NOT_ATTENTION)), None)
    if odd is not None:
        raise InputError(None, f"{keys.place}{odd}", keys.get(odd), "layers other than attention are not modelled")
    return validate(Llm, _fields(keys) | {"weight_dtype": _stored(quantization)})  # type: ignore[no-any-return]


class _Keys:
    """A config whose values are asked for under any of several names."""

    def __init__(self, config: Mapping[str, Any], place: str = "") -> None:
        self.config = config
        self.place = place
        self.family = str(config.get("model_type", ""))

    def get(self, *names: str, default: Any = None) -> Any:
        """The first that is there and not null."""
        return next((self.config[name] for name in names if self.config.get(name) is not None), default)

    def need(self, *names: str) -> int:
        """A positive integer that has to be there."""
        value = self.get(*names)
        name = next((name for name in names if self.config.get(name) is not None), names[0])
        if value is None:
            raise InputError(None, f"{self.place}{_named(names)}", None, "is missing")
        return self.whole(name, value)

    def whole(self, name: str, value: Any) -> int:
        """The value, if it is a positive integer."""
        if type(value) is not int or not 1 <= value <= MOST_TOKENS:
            raise InputError(None, f"{self.place}{name}", value, "must be an integer from 1 to 2^40")
        return value

    def optional(self, *names: str, zero: bool = False) -> int | None:
        """A positive integer, or None if it is not there or null; or 0, where that means none."""
        value = self.get(*names)
        return None if value is None or (zero and type(value) is int and value == 0) else self.need(*names)

    def flag(self, name: str, default: bool = False) -> bool:
        """Whether it is set."""
        value = self.get(name, default=default)
        if type(value) is not bool:
            raise InputError(None, f"{self.place}{name}", value, "must be true or false")
        return value

    def list_of(self, name: str, count: int) -> list[Any] | None:
        """A list with an entry for each layer, or None if it is not there."""
        value = self.get(name)
        if value is not None and (not isinstance(value, list) or len(value) != count):
            raise InputError(None, f"{self.place}{name}", value, f"must be a list of {count} entries, one a layer")
        return value

    def refuse_missing(self, *groups: tuple[str, ...]) -> None:
        """All that is missing at once: each group is one number under any of its names."""
        missing = [_named(group) for group in groups if self.get(*group) is None]
        if len(missing) > 1:
            where = f" in {self.place.rstrip('.')}" if self.place else ""
            raise InputError(None, None, None, f"missing{where}: {'; '.join(missing)}")


def _named(names: Sequence[str]) -> str:
    return f"{names[0]} (or {', '.join(names[1:])})" if len(names) > 1 else names[0]


def _fields(keys: _Keys) -> dict[str, Any]:
    widths = ("intermediate_size_mlp",) if keys.family == "llama4_text" else WIDTHS  # whose other one is the experts'
    keys.refuse_missing(
        LAYERS,
        HIDDEN,
        HEADS,
        ("vocab_size",),
        *([] if keys.family in UNGATED else [widths]),
        *([(name,) for name in LATENT] if keys.get("kv_lora_rank") is not None else []),
        *([PER_TOKEN] if (keys.optional(*EXPERTS, zero=True) or 1) > 1 else []),
    )
    layers = keys.need(*LAYERS)
    if layers > MOST_LAYERS:
        raise InputError(None, f"{keys.place}num_hidden_layers", layers, f"must be at most {MOST_LAYERS}")
    hidden = keys.need(*HIDDEN)
    heads = keys.need(*HEADS)
    fields: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _kv_heads(keys, heads),
        "head_dim": _head_dim(keys, hidden, heads),
        "vocab": keys.need("vocab_size"),
        "gated": keys.family not in UNGATED,
        "tied": keys.flag("tie_word_embeddings", keys.family in TIED or keys.family.startswith("gemma")),
    }
    four = 4 * hidden if keys.family in UNGATED else None  # families of GPT's kind leave it out
    fields["ffn"] = four if four is not None and keys.get(*widths) is None else keys.need(*widths)
    if keys.family in LEARNED_POSITIONS:
        longest = keys.need("max_position_embeddings", "n_positions")
        fields["positions"] = longest + LEARNED_POSITIONS[keys.family]
    if keys.get("kv_lora_rank") is not None:
        fields["latent"] = {
            "q_rank": keys.optional("q_lora_rank", zero=True),
            "kv_rank": keys.need("kv_lora_rank"),
            "rope": keys.need("qk_rope_head_dim"),
            "nope": keys.need("qk_nope_head_dim"),
            "value": keys.need("v_head_dim"),
        }
    count = keys.optional(*EXPERTS, zero=True)
    if count is not None and count > 1:
        fields["experts"] = _experts(keys, layers, count, fields["ffn"])
    return fields | _window(keys, layers)


def _kv_heads(keys: _Keys, heads: int) -> int:
    """Without a word of it every head has its own; old Falcons have one in all."""
    if keys.family == "falcon" and keys.flag("multi_query") and not keys.flag("new_decoder_architecture"):
        return 1
    if keys.family == "gpt_bigcode" and keys.flag("multi_query", True):
        return 1
    count = keys.optional(*KV_HEADS) or heads
    if heads % count:
        name = next(name for name in KV_HEADS if keys.get(name) is not None)
        raise InputError(None, f"{keys.place}{name}", count, f"must divide the {heads} attention heads")
    return count


def _head_dim(keys: _Keys, hidden: int, heads: int) -> int:
    given = keys.optional("head_dim", "qk_nope_head_dim")
    if given is not None:
        return given
    if hidden % heads:
        raise InputError(None, f"{keys.place}head_dim", None, f"is missing: {heads} heads do not divide {hidden}")
    return hidden // heads


def _experts(keys: _Keys, layers: int, count: int, ffn: int) -> dict[str, Any]:
    llama4 = keys.family == "llama4_text"
    width = keys.optional("moe_intermediate_size", "expert_ffn_hidden_size", *(["intermediate_size"] * llama4)) or ffn
    shared = keys.optional("shared_expert_intermediate_size", zero=True)
    if shared is None:
        shared = width * (keys.optional("n_shared_experts", "num_shared_experts", zero=True) or int(llama4))
    return {
        "layers": _routed_layers(keys, layers),
        "count": count,
        "per_token": keys.need(*PER_TOKEN),
        "ffn": width,
        "shared_ffn": shared,
    }


def _routed_layers(keys: _Keys, layers: int) -> int:
    """How many layers have experts. Qwen and Llama count them from 1, DeepSeek from 0."""
    plain = keys.get("mlp_only_layers", default=[])
    if not isinstance(plain, list) or not all(type(layer) is int for layer in plain):
        raise InputError(None, f"{keys.place}mlp_only_layers", plain, "must be a list of layers, counted from 0")
    first = keys.optional("first_k_dense_replace", zero=True) or 0
    frequency = keys.get("moe_layer_freq")
    if isinstance(frequency, list):  # a 1 for each layer with experts
        keys.list_of("moe_layer_freq", layers)
        if not all(type(one) in (int, bool) for one in frequency):
            raise InputError(None, f"{keys.place}moe_layer_freq", frequency, "must be a list of 0 and 1, one a layer")
        routed = sum(1 for one in frequency if one)
    else:
        step = keys.optional("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step") or 1
        shift = 1 if frequency is None else 0
        routed = sum((layer + shift) % step == 0 for layer in range(first, layers) if layer not in plain)
    if not routed:
        raise InputError(None, f"{keys.place}num_hidden_layers", layers, "leaves no layer for the experts")
    return routed


def _window(keys: _Keys, layers: int) -> dict[str, Any]:
    """Sliding window and the layers that have it."""
    types = keys.list_of("layer_types", layers)
    odd = next((one for one in types or () if one not in ATTENTION), None)
    if odd is not None:
        raise InputError(None, f"{keys.place}layer_types", odd, "layers other than attention are not modelled")
    window = keys.optional("sliding_window", zero=True)
    if window is None or not keys.flag("use_sliding_window", True):
        return {}
    if types is not None:
        return {"window": window, "window_layers": sum(1 for one in types if one == "sliding_attention")}
    every = keys.optional("sliding_window_pattern") or FULL_EVERY.get(keys.family)
    whole = 0 if every is None else layers // every
    if keys.get("max_window_layers") is not None and keys.family.startswith("qwen"):
        whole = min(keys.optional("max_window_layers", zero=True) or 0, layers)
    return {"window": window, "window_layers": layers - whole}


def _stored(quantization: Any) -> str | None:
    """How the weights are stored, as a `weight_dtype`; an unknown method is left to whoever names the model."""
    if quantization is None:
        return None
    if not isinstance(quantization, Mapping):
        raise InputError(None, "quantization_config", quantization, "must be an object")
    method, bits = quantization.get("quant_method"), quantization.get("bits")
    if method is not None and not isinstance(method, str):
        raise InputError(None, "quantization_config.quant_method", method, "must be a text")
    if method in STORED:
        return STORED[method]
    return {4: "int4", 8: "int8"}.get(bits, "unknown") if type(bits) is int else "unknown"
