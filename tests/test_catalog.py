"""The catalog: totals that others publish, config.json in the words of many families, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from batchlab import catalog
from batchlab.catalog.config import read_config, shape
from batchlab.errors import InputError

pytestmark = pytest.mark.once


# As their authors state them, in billions. Those that count no parameters exactly stand with the digits they give.
STATED = {
    "opt-13b": 12.85,
    "opt-66b": 65.7,
    "opt-175b": 175,
    "gpt-3-175b": 174.6,
    "bloom-176b": 176.25,
    "llama-2-7b": 6.74,
    "llama-2-13b": 13.02,
    "llama-2-70b": 68.98,
    "codellama-34b": 33.7,
    "llama-3.1-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-3.3-70b": 70.55,
    "qwen3-8b": 8.19,
    "llama-3.1-405b": 405.85,
    "yi-34b": 34.39,
    "mistral-7b": 7.24,
    "mixtral-8x7b": 46.7,
    "qwen2.5-1.5b": 1.54,
    "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.7,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "falcon-180b": 179.5,
    "deepseek-v3": 671,
    "gpt-oss-120b": 116.8,
    "gemma-3-270m": 0.268,
}


def test_every_model_has_a_stated_total() -> None:
    assert set(STATED) == set(catalog.llm_names())


@pytest.mark.parametrize("name", STATED)
def test_parameters_are_what_is_stated(name: str) -> None:
    assert catalog.find_llm(name).parameters / 1e9 == pytest.approx(STATED[name], rel=0.003)


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v3", 37), ("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3), ("gpt-oss-120b", 5.1)]
)
def test_active_parameters_are_what_is_stated(name: str, billions: float) -> None:
    """Some count the embedding table among them, some do not: what is stated lies between."""
    llm = catalog.find_llm(name)
    low, high = llm.active_parameters, llm.active_parameters + llm.embedding_weights
    assert low * 0.985 <= billions * 1e9 <= high * 1.015


@pytest.mark.parametrize(
    ("name", "numbers"), [("opt-13b", 819_200 // 2), ("llama-3.1-8b", 131_072 // 2), ("deepseek-v3", 70_272 // 2)]
)
def test_kv_of_a_token(name: str, numbers: int) -> None:
    llm = catalog.find_llm(name)
    assert llm.layers * llm.kv_values() == numbers


def test_kv_heads_on_more_gpus_than_there_are_heads() -> None:
    llm = catalog.find_llm("llama-3.1-8b")
    assert [llm.kv_values(gpus) for gpus in (1, 2, 8, 16, 32)] == [2048, 1024, 256, 256, 256]
    latent = catalog.find_llm("deepseek-v3")
    assert latent.kv_values(8) == latent.kv_values(1) == 576


def test_every_gpu_reads_and_has_an_origin() -> None:
    for name in catalog.gpu_names():
        gpu = catalog.find_gpu(name)
        assert gpu.origin and 20 < gpu.memory_gib < 300 and 50 < gpu.tflops < 5000 and 0.2 < gpu.bandwidth_tb_s < 10
    assert catalog.find_gpu("h100-sxm").tflops == 989 and not catalog.find_gpu("a100-40").fp8


def test_names_are_found_as_vendors_write_them() -> None:
    assert catalog.find_gpu("L40S") == catalog.find_gpu("l40s")
    assert catalog.find_llm("Qwen2.5-7B") == catalog.find_llm("qwen2.5-7b")


@pytest.mark.parametrize(
    ("find", "name", "told"),
    [
        (catalog.find_gpu, "H100-SMX", "no such GPU: `batchlab catalog` lists them (did you mean 'h100-sxm'?)"),
        (catalog.find_gpu, "h101", "(did you mean 'h100-sxm'?)"),
        (catalog.find_llm, "meta-llama/Llama-3.1-8B", "(did you mean 'llama-3.1-8b'?)"),
        (catalog.find_llm, "", "no such model: `batchlab catalog` lists them, or give a path to its config.json"),
    ],
)
def test_unknown_names(find: Any, name: str, told: str) -> None:
    with pytest.raises(InputError) as error:
        find(name)
    assert str(error.value).endswith(told)


LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}


def without(key: str, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in (LLAMA | changes).items() if name != key}


def test_a_config_is_the_model_that_it_is_of(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "architectures": ["LlamaForCausalLM"], "rope_theta": 500000.0}))
    assert read_config(path) == catalog.find_llm(str(path)) == catalog.find_llm("llama-3.1-8b")


FAMILIES = {
    "a model that sees": ({"model_type": "mllama", "vision_config": {"hidden_size": 1}, "text_config": LLAMA}, 8.03),
    "GPT-2": (
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": None, "vocab_size": 50257}
        | {"n_positions": 1024},
        0.1244,
    ),
    "Falcon-7B, one KV head": (
        {"model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71}
        | {"multi_query": True, "vocab_size": 65024},
        7.22,
    ),
    "Qwen1.5-MoE-A2.7B, shared experts": (
        {"model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16}
        | {"num_key_value_heads": 16, "intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4}
        | {"moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "vocab_size": 151936}
        | {"decoder_sparse_step": 1, "mlp_only_layers": [], "sliding_window": 32768, "use_sliding_window": False},
        14.3,
    ),
    "DeepSeek-V2-Lite, queries not compressed": (
        {"model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16}
        | {"q_lora_rank": None, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
        | {"v_head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64}
        | {"n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1}
        | {"vocab_size": 102400},
        15.7,
    ),
    "Llama 4 Scout's language model": (  # 109 billion with the vision encoder
        {
            "text_config": {"model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120}
            | {"num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192}
            | {"intermediate_size_mlp": 16384, "num_local_experts": 16, "num_experts_per_tok": 1}
            | {"interleave_moe_layer_step": 1, "vocab_size": 202048}
        },
        107.8,
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    config, billions = FAMILIES[family]
    assert shape(config).parameters / 1e9 == pytest.approx(billions, rel=0.004)


@pytest.mark.parametrize(
    ("changes", "window", "layers"),
    [
        ({}, None, 0),
        ({"sliding_window": None}, None, 0),
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, 32),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None, 0),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 28}, 64, 4),
        ({"model_type": "gemma2", "sliding_window": 4096}, 4096, 16),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6}, 512, 27),
        ({"sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 29}, 8, 3),
    ],
)
def test_sliding_windows(changes: dict[str, Any], window: int | None, layers: int) -> None:
    llm = shape(LLAMA | changes)
    assert (llm.window, llm.window_layers) == (window, layers)


@pytest.mark.parametrize(
    ("quantization", "stored"),
    [
        (None, None),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "compressed-tensors"}, "unknown"),
    ],
)
def test_how_weights_are_stored(quantization: Any, stored: str | None) -> None:
    assert shape(LLAMA | {"quantization_config": quantization}).weight_dtype == stored


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read: No such file"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "[1]: must be an object"),
        ("{}", "missing: num_hidden_layers (or n_layer, n_layers, num_layers); hidden_size (or"),
        (json.dumps(without("hidden_size")), "hidden_size (or n_embd, d_model, n_embed): is missing"),
        (json.dumps(without("vocab_size")), "vocab_size: is missing"),
        (json.dumps(without("intermediate_size")), "intermediate_size (or "),
        (json.dumps({"text_config": without("vocab_size")}), "text_config.vocab_size: is missing"),
        (json.dumps(LLAMA | {"num_hidden_layers": 32.0}), "num_hidden_layers: 32.0: must be an integer from 1 to 2^40"),
        (json.dumps(LLAMA | {"num_hidden_layers": True}), "num_hidden_layers: True: must be an integer"),
        (json.dumps(LLAMA | {"num_hidden_layers": 2**40}), "must be at most 10000"),
        (json.dumps(LLAMA | {"hidden_size": -1}), "hidden_size: -1: must be an integer from 1 to 2^40"),
        (json.dumps(LLAMA | {"hidden_size": 2**63}), "hidden_size: 9223372036854775808: must be an integer"),
        (json.dumps(LLAMA | {"hidden_size": 4097}), "head_dim: is missing: 32 heads do not divide 4097"),
        (json.dumps(LLAMA | {"vocab_size": None}), "vocab_size: is missing"),
        (json.dumps(LLAMA | {"num_local_experts": 8}), "num_experts_per_tok (or "),
        (json.dumps(LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 9}), "9 experts a token, of only 8"),
        (json.dumps(LLAMA | {"kv_lora_rank": 512}), "missing: qk_rope_head_dim; qk_nope_head_dim; v_head_dim"),
        (json.dumps(LLAMA | {"mamba_d_state": 16}), "mamba_d_state: 16: layers other than attention are not modelled"),
        (
            json.dumps(LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 99}),
            "leaves no layer for the experts",
        ),
        (
            json.dumps(LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": 3}),
            "mlp_only_layers: 3: must be a list",
        ),
    ],
)
def test_a_config_that_will_not_do(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as error:
        read_config(path)
    assert str(error.value).startswith(f"{path}: ") and told in str(error.value), error.value


MOE = {"num_local_experts": 8}
MLA = {"kv_lora_rank": 512, "num_key_value_heads": 32}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_key_value_heads": 5}, "num_key_value_heads: 5: must divide the 32 attention heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: 0: must be an integer from 1 to 2^40"),
        ({"head_dim": 0}, "head_dim: 0: must be an integer from 1 to 2^40"),
        ({"head_dim": 2**63}, "head_dim: 9223372036854775808: must be an integer from 1 to 2^40"),
        ({"sliding_window": 64, "sliding_window_pattern": 0}, "sliding_window_pattern: 0: must be an integer from 1"),
        ({"sliding_window": False}, "sliding_window: False: must be an integer from 1"),
        ({"sliding_window": 64, "use_sliding_window": "false"}, "use_sliding_window: 'false': must be true or false"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings: 'false': must be true or false"),
        ({"quantization_config": "fp8"}, "quantization_config: 'fp8': must be an object"),
        (
            {"quantization_config": {"quant_method": ["fp8"]}},
            "quantization_config.quant_method: ['fp8']: must be a text",
        ),
        (
            MOE | {"num_experts_per_tok": 2, "mlp_only_layers": ["1"]},
            "mlp_only_layers: ['1']: must be a list",
        ),
        (MOE | {"num_experts_per_tok": 2, "moe_layer_freq": [1] * 31 + ["x"]}, "moe_layer_freq: [1, 1"),
        ({"layer_types": ["full_attention"]}, "layer_types: ['full_attention']: must be a list of 32 entries"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types: 'linear_attention': layers other than attention"),
        (MOE | {"num_experts_per_tok": 9}, "9 experts a token, of only 8"),
        (MOE, "num_experts_per_tok (or experts_per_token, moe_topk, moe_top_k): is missing"),
        (
            MOE | {"vocab_size": None},
            "missing: vocab_size; num_experts_per_tok (or experts_per_token, moe_topk, moe_top_k)",
        ),
        (MLA, "missing: qk_rope_head_dim; qk_nope_head_dim; v_head_dim"),
        (
            {"hidden_size": None, "intermediate_size": None},
            "missing: hidden_size (or n_embd, d_model, n_embed); intermediate_size (or intermediate_size_mlp, ffn_dim, "
            "n_inner, ffn_hidden_size)",
        ),
    ],
)
def test_a_config_with_wrong_values_is_told_in_one_line(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert str(caught.value).startswith(str(path)) and told in str(caught.value)


def test_zero_means_none_where_configs_say_so() -> None:
    plain = shape(LLAMA)
    assert shape(LLAMA | {"sliding_window": 0, "num_experts": 0, "first_k_dense_replace": 0}) == plain


def test_a_config_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_config(path)


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        ("google/gemma-3-27b-it", None),
        ("Qwen/Qwen2.5-14B", None),
        ("Qwen/Qwen2.5-7.5B", None),
        ("meta-llama/Llama-3.2-3B", None),
        ("Qwen/Qwen3-235B-A22B", None),
        ("Qwen/Qwen3-30B-A4B", None),
        ("mistralai/Mixtral-8x22B-v0.1", None),
        ("mistralai/Mistral-Small", None),
        ("Qwen/Qwen2.5-Coder-7B", "qwen2.5-7b"),
        ("mixtrall-8x7b", "mixtral-8x7b"),
        ("mistal", "mistral-7b"),
        ("gpt-oss", "gpt-oss-120b"),
    ],
)
def test_a_model_of_another_size_is_not_suggested(name: str, alike: str | None) -> None:
    assert catalog.alike_llm(name) == ("" if alike is None else f" (did you mean {alike!r}?)")
