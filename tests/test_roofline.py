"""The roofline cost model against a second, plainer computation, laws, recorded memory and published times."""

import importlib.util
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from batchlab import Summary, load, simulate, verify
from batchlab.catalog import find_gpu, find_llm
from batchlab.cli import main
from batchlab.cli.commands import cli
from batchlab.core.work import Work
from batchlab.costs import build
from batchlab.costs.base import LONGEST, whole
from batchlab.costs.roofline import Roofline
from batchlab.errors import InputError
from batchlab.vllm_command import parse

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
SHARED = Path(__file__).parents[2] / "shared"
EXAMPLE = ROOT / "examples" / "roofline.toml"


def work_of(chunks: list[tuple[int, int]], contexts: list[int], samples: int = 0, moved: int = 0, pad: int = 0) -> Work:
    """Chunks are (tokens, computed before); contexts those of decodes, each of which gets a token."""
    work = Work()
    work.chunks, work.contexts = chunks, contexts
    work.prefill_tokens = sum(tokens for tokens, _ in chunks)
    work.decode_tokens = len(contexts)
    work.prefill_context = sum(tokens + before for tokens, before in chunks)
    work.context_tokens = work.prefill_context + sum(contexts)
    work.samples = samples + len(contexts)
    work.moved_blocks, work.padding_tokens = moved, pad
    return work


# A second computation: one layer, one query and one key at a time, in seconds and bytes


SHAPES = {
    # heads, KV heads, head width, weights of a layer outside routed experts, of an expert
    "llama-3.1-8b": (32, 8, 128, 4096 * 128 * 80 + 3 * 4096 * 14336, 0),
    "mixtral-8x7b": (32, 8, 128, 4096 * 128 * 80 + 8 * 4096, 3 * 4096 * 14336),
    "gpt-oss-120b": (64, 8, 64, 2880 * 64 * 144 + 128 * 2880, 3 * 2880 * 2880),
}
EXPERTS = {"mixtral-8x7b": (8, 2), "gpt-oss-120b": (128, 4)}
WINDOWS = {"gpt-oss-120b": 128}  # in every second layer


def seconds(name: str, gpu: str, tensor: int, stages: int, work: Work) -> float:
    """Defaults of the cost model, written out again; weights of bf16, KV of bf16."""
    heads, kv_heads, width, dense, expert = SHAPES[name]
    peak, llm = find_gpu(gpu), find_llm(name)
    flops, reads = peak.tflops * 1e12 * 0.6, peak.bandwidth_tb_s * 1e12 * 0.8
    tokens = work.prefill_tokens + work.decode_tokens + work.padding_tokens
    total = 0.000130
    for layer in range(llm.layers):
        total += max(2 * dense * tokens / tensor / flops, 2 * dense / tensor / reads)
        if expert:
            count, each = EXPERTS[name]
            touched = count * (1 - math.exp(tokens * math.log(1 - each / count)))
            total += max(2 * expert * each * tokens / tensor / flops, 2 * expert * touched / tensor / reads)
        window = WINDOWS[name] if name in WINDOWS and layer % 2 == 0 else 2**62
        kv_bytes = 2 * 2 * max(1, kv_heads // tensor) * width
        pairs = keys = 0
        for chunk, before in work.chunks:
            seen = [range(max(0, before + i + 1 - window), before + i + 1) for i in range(chunk)]
            pairs += sum(map(len, seen))
            keys += seen[-1].stop - seen[0].start
        total += max(4 * heads * width * pairs / tensor / flops, kv_bytes * keys / reads)
        keys = sum(min(context, window) for context in work.contexts)
        total += max(4 * heads * width * keys / tensor / flops, kv_bytes * keys / reads)
        if tensor > 1:
            share = 2 * (tensor - 1) / tensor * tokens * llm.hidden * 2 / (peak.link_gb_s * 1e9 * 0.5)
            total += 2 * (0.000048 + share)
    for _ in range(stages - 1):
        total += 0.000048 + tokens * llm.hidden * 2 / (peak.link_gb_s * 1e9 * 0.5)
    if work.samples:
        head = llm.vocab * llm.hidden / tensor
        total += max(2 * head * work.samples / flops, 2 * head / reads)
    return total


CHUNKS = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 500)), max_size=4)
CONTEXTS = st.lists(st.integers(1, 3000), max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(SHAPES)),
    gpu=st.sampled_from(["h100-sxm", "a100-80-pcie", "l4"]),
    tensor=st.sampled_from([1, 2, 8, 16]),
    stages=st.sampled_from([1, 3]),
    chunks=CHUNKS,
    contexts=CONTEXTS,
    samples=st.integers(0, 3),
    pad=st.integers(0, 5),
)
def test_equals_the_plain_computation(
    name: str,
    gpu: str,
    tensor: int,
    stages: int,
    chunks: list[tuple[int, int]],
    contexts: list[int],
    samples: int,
    pad: int,
) -> None:
    work = work_of(chunks, contexts, min(samples, len(chunks)), pad=pad)
    if not chunks and not contexts and not pad:
        return
    model = Roofline(
        llm=name, gpu=gpu, tensor_parallel=tensor, pipeline_parallel=stages, weight_dtype="bf16", kv_dtype="bf16"
    )
    assert model.duration(work) == pytest.approx(1e9 * seconds(name, gpu, tensor, stages, work), rel=1e-9, abs=1)


@settings(max_examples=100, deadline=None)
@given(
    llm=st.sampled_from(["qwen2.5-1.5b", "deepseek-v3", "gpt-oss-120b", "gemma-3-270m"]),
    chunks=CHUNKS,
    contexts=CONTEXTS,
    extra=st.integers(1, 2000),
    moved=st.integers(0, 9),
)
def test_laws(llm: str, chunks: list[tuple[int, int]], contexts: list[int], extra: int, moved: int) -> None:
    model = Roofline(llm=llm, gpu="h200")
    work = work_of(chunks, contexts, moved=moved)
    duration = model.duration(work)
    terms = model.breakdown(work)
    assert min(terms.values()) >= 0
    assert abs(duration - math.fsum(terms.values())) <= 0.5 + 1e-6
    assert terms["overhead"] == pytest.approx(130_000 + moved * 1000 * model.settings["moved_block_us"])
    more_context = work_of(chunks, [context + extra for context in contexts], moved=moved)
    assert model.duration(more_context) >= duration
    assert model.duration(work_of([*chunks, (extra, 0)], contexts, moved=moved)) >= duration
    assert model.duration(work_of(chunks, [*contexts, extra], moved=moved)) >= duration
    better = Roofline(llm=llm, gpu="h200", compute_efficiency=0.7, bandwidth_efficiency=0.9, step_us=0)
    assert better.duration(work) < duration
    alone = [model.duration(work_of([chunk], [])) for chunk in chunks]
    alone += [model.duration(work_of([], [context])) for context in contexts]
    if alone:
        assert model.duration(work_of(chunks, contexts)) <= sum(alone) + len(alone), "together is never longer"


def test_chunks_of_a_prompt_compute_what_the_whole_prompt_does() -> None:
    """Compute-bound chunks, with no fixed time: attention pairs and matrix work add up exactly."""
    for llm in ("llama-3.1-8b", "gemma-3-270m"):
        model = Roofline(llm=llm, gpu="a100-40", step_us=0, bandwidth_efficiency=1.0, bandwidth_tb_s=1e6)
        whole = model.breakdown(work_of([(4096, 0)], []))["compute"]
        parts = [model.breakdown(work_of([(512, before)], []))["compute"] for before in range(0, 4096, 512)]
        assert sum(parts) == pytest.approx(whole, rel=1e-9)


def test_experts_that_a_batch_touches() -> None:
    """The expectation against drawing experts at random."""
    generator = random.Random(8)
    model = Roofline(llm="qwen3-30b-a3b", gpu="h100-sxm", step_us=0, tflops=1e6, compute_efficiency=1.0)
    idle = find_llm("qwen3-30b-a3b")
    byte_ns = 1 / (3350 * 0.8)
    for tokens in (1, 5, 40):
        draws = [len({e for _ in range(tokens) for e in generator.sample(range(128), 8)}) for _ in range(400)]
        touched = sum(draws) / len(draws)
        read = model.breakdown(work_of([(tokens, 0)], []))["weights"] / byte_ns / 2
        assert (read - idle.dense_weights) / idle.routed_weights * 128 == pytest.approx(touched, rel=0.02)


@pytest.mark.parametrize(("dtype", "share"), [("fp8", 0.5), ("int8", 0.5), ("int4", 0.2578125), ("mxfp4", 0.265625)])
def test_smaller_weights_are_read_sooner(dtype: Any, share: float) -> None:
    one = work_of([], [10])
    llm = find_llm("qwen3-32b")
    outer = 2 * llm.head_weights / (3350 * 0.8)
    plain = Roofline(llm="qwen3-32b", gpu="h100-sxm").breakdown(one)["weights"]
    small = Roofline(llm="qwen3-32b", gpu="h100-sxm", weight_dtype=dtype).breakdown(one)["weights"]
    assert small - outer == pytest.approx((plain - outer) * share)


def test_fp8_computes_twice_as_fast_only_where_the_gpu_can() -> None:
    prompt = work_of([(4096, 0)], [])
    for gpu, ratio in (("h100-sxm", 2), ("a100-80-sxm", 1)):
        plain, fp8 = (
            Roofline(llm="llama-3.1-70b", gpu=gpu, weight_dtype=dtype)._dense_token  # type: ignore[arg-type]
            for dtype in ("bf16", "fp8")
        )
        assert plain / fp8 == pytest.approx(ratio)
        assert (
            Roofline(llm="llama-3.1-70b", gpu=gpu, weight_dtype="int4").breakdown(prompt)["compute"]
            == (Roofline(llm="llama-3.1-70b", gpu=gpu).breakdown(prompt)["compute"])
        )


def test_by_hand() -> None:
    """OPT-13B on an A100-40: 25.7 GB of weights and 819,200 bytes of KV a token at 0.8 of 1.555 TB/s."""
    model = Roofline(llm="opt-13b", gpu="a100-40", step_us=0)
    terms = model.breakdown(work_of([], [1000] * 4))
    assert terms["weights"] == pytest.approx(25.7e9 / (1555 * 0.8), rel=0.003)
    assert terms["kv"] == pytest.approx(4000 * 819_200 / (1555 * 0.8))
    assert terms["compute"] == terms["communication"] == terms["overhead"] == 0


# Memory


def test_blocks_of_a_recorded_start() -> None:
    """vLLM 0.19 on an RTX 4090 found room for 2588 blocks of 16 at 0.9 and steps of 2048. The formula gives 2568."""
    model = Roofline(llm="llama-3.1-8b", gpu="rtx-4090")
    assert model.kv_blocks(0.9, 16, 2048) == 2568
    assert abs(2568 / 2588 - 1) < 0.01
    shown_by_the_driver = 25_250_627_584
    assert model.memory(1.0, 0).total == pytest.approx(shown_by_the_driver, rel=0.001)


@pytest.mark.parametrize(
    ("gpu", "llm", "tensor", "tokens"),
    [("a100-40", "opt-13b", 1, 15_700), ("a100-40", "opt-66b", 4, 9_700), ("a100-80-sxm", "opt-175b", 8, 60_100)],
)
def test_tokens_that_vllms_paper_states(gpu: str, llm: str, tensor: int, tokens: int) -> None:
    """At 0.95; the paper does not say its share."""
    model = Roofline(llm=llm, gpu=gpu, tensor_parallel=tensor)
    assert 16 * model.kv_blocks(0.95, 16, 2560) == pytest.approx(tokens, rel=0.02)


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(InputError) as error:
        Roofline(llm="llama-3.1-70b", gpu="h100-sxm").kv_blocks(0.9, 16, 2048)
    assert "66.8 GB are missing; tensor_parallel = 2 would fit" in str(error.value)
    assert Roofline(llm="llama-3.1-70b", gpu="h100-sxm", tensor_parallel=2).kv_blocks(0.9, 16, 2048) > 0
    with pytest.raises(InputError, match="no tensor_parallel up to 64 would fit"):
        Roofline(llm="llama-3.1-70b", gpu="l4", memory_gib=1).kv_blocks(0.9, 16, 2048)


def test_pipeline_stages_share_the_weights() -> None:
    one, two = (
        Roofline(llm="llama-3.1-8b", gpu="h100-sxm", pipeline_parallel=stages).memory(0.9, 0) for stages in (1, 2)
    )
    llm = find_llm("llama-3.1-8b")
    assert one.weights == 2 * llm.parameters
    assert two.weights == 2 * (llm.dense_weights / 2 + llm.head_weights), "half the layers and one of both tables"
    assert two.kv_token == one.kv_token / 2


# In a scenario


def run_of(**overrides: Any) -> Any:
    (run,) = load(EXAMPLE, {key.replace("__", "."): value for key, value in overrides.items()}).runs
    return run


def test_blocks_come_from_the_memory() -> None:
    run = run_of()
    assert run.limits.num_gpu_blocks == run.cost.kv_blocks(0.9, 16, 2048) - 1
    assert run.header().settings["gpu_memory_utilization"] == 0.9
    small = run_of(engine__block_size=64, engine__gpu_memory_utilization=0.5, cost__kv_dtype="fp8")
    assert small.limits.num_gpu_blocks == small.cost.kv_blocks(0.5, 64, 2048) - 1


def test_a_given_number_of_blocks_goes_first() -> None:
    run = run_of(engine__num_gpu_blocks=100)
    assert run.limits.num_gpu_blocks == 99 and "gpu_memory_utilization" not in run.settings


def test_each_policy_counts_in_its_own_blocks() -> None:
    limits = {"engine.max_num_seqs": 8, "engine.max_num_batched_tokens": 8192}
    (chunked,) = load(EXAMPLE, {"engine.prefill_chunk": 64}, ["chunked"]).runs
    assert chunked.limits.num_gpu_blocks is None
    loaded = load(EXAMPLE, limits, ["static"])
    assert "gpu_memory_utilization" in loaded.ignored["static"]
    (v0,) = load(EXAMPLE, {}, ["vllm-v0"]).runs
    assert v0.limits.num_gpu_blocks == run_of().limits.num_gpu_blocks + 1, "it keeps none for itself"
    (orca,) = load(EXAMPLE, {"engine.max_bs": 8}, ["orca"]).runs
    assert orca.limits.num_gpu_blocks == orca.cost.kv_blocks(0.9, 1, 8192) and orca.limits.block_size == 1


def test_the_example_runs_and_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = command(capsys, "run", str(EXAMPLE), "--trace", str(tmp_path / "t.jsonl"))
    assert (code, err) == (0, "")
    assert verify(tmp_path / "t.jsonl").ok
    header = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])
    assert header["clock"]["cost"]["gpu"] == "h100-sxm" and header["clock"]["cost"]["compute_efficiency"] == 0.6
    assert header["clock"]["cost"]["parameters"] == 8_029_995_008


def test_the_first_step_of_the_example_by_hand() -> None:
    """A's 300 and B's 1,200 prompt tokens: matrix work of 6.98e9 weights, attention of each with itself, samples."""
    summary = Summary()
    simulate(run_of(), [summary])
    dense = 32 * (4096 * 128 * 80 + 3 * 4096 * 14336)
    pairs = 300 * 301 // 2 + 1200 * 1201 // 2
    compute = (2 * dense * 1500 + 4 * 4096 * 32 * pairs) / (989e3 * 0.6)
    head = 2 * 128256 * 4096 / (3350 * 0.8)
    assert summary.by_id["A"].first_time == round(compute + head + 130_000)


def test_a_config_is_found_from_the_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    text = EXAMPLE.read_text().replace('"llama-3.1-8b"', '"model/config.json"')
    (tmp_path / "s.toml").write_text(text)
    monkeypatch.chdir(ROOT)
    (run,) = load(tmp_path / "s.toml").runs
    assert run.cost.llm.layers == 2 and run.cost.describe()["llm"] == "config.json"
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as error:
        load(tmp_path / "s.toml")
    assert str(error.value).startswith(f"{tmp_path / 'model' / 'config.json'}: intermediate_size (or ")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("cost.gpu", "h100", "did you mean 'h100-sxm' or 'h100-pcie'?"),
        ("cost.llm", "lama-3.1-8b", "did you mean 'llama-3.1-8b'?"),
        ("cost.llm", "nowhere/config.json", "cannot be read"),
        ("cost.gqu", "x", "unknown key (did you mean 'gpu'?)"),
        ("cost.tensor_parallel", 3, "must be at least 1 and divide the 32 attention heads"),
        ("cost.tensor_parallel", 0, "must be at least 1 and divide the 32 attention heads"),
        ("cost.tensor_parallel", -1, "must be at least 1 and divide the 32 attention heads"),
        ("cost.pipeline_parallel", 33, "must be from 1 to the 32 layers"),
        ("cost.dtype", "fp8", "'bf16' or 'fp16'"),
        ("cost.weight_dtype", "int3", "'int4'"),
        ("cost.compute_efficiency", 0, "must be a share, above 0 and at most 1"),
        ("cost.bandwidth_efficiency", 1.01, "must be a share"),
        ("cost.compute_efficiency", float("nan"), "must be a share"),
        ("cost.tflops", float("inf"), "must be a number above 0, at most 1e9"),
        ("cost.tflops", -1, "must be a number above 0"),
        ("cost.step_us", -1, "must be a number from 0 to 1e9"),
        ("cost.step_us", float("nan"), "must be a number from 0 to 1e9"),
        ("cost.allreduce_us", 2**63, "must be a number from 0 to 1e9"),
        ("cost.step_us", "130", "must be a number"),
        ("engine.gpu_memory_utilization", 0, "must be above 0, at most 1"),
        ("engine.gpu_memory_utilization", 1.5, "must be above 0, at most 1"),
        ("engine.gpu_memory_utilization", float("nan"), "must be above 0, at most 1"),
        ("engine.gpu_memory_utilisation", 0.9, "unknown key (did you mean 'gpu_memory_utilization'?)"),
        ("engine.gpu_memory_utilization", 0.1, "does not fit"),
        ("engine.max_num_batched_tokens", 2**40, "does not fit"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], key: str, value: Any, told: str) -> None:
    with pytest.raises(InputError) as error:
        load(EXAMPLE, {key: value})
    assert told in str(error.value), error.value
    assert key.rpartition(".")[2] in str(error.value) or "config.json" in str(error.value) or "fit" in told


def test_utilization_needs_a_model_that_knows_the_gpu() -> None:
    with pytest.raises(InputError, match="needs a cost model that knows GPU and model, such as 'roofline'"):
        load(EXAMPLE.parent / "vllm.toml", {"engine.num_gpu_blocks": None, "engine.gpu_memory_utilization": 0.9})


def test_unknown_storage_has_to_be_named(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    config |= {"intermediate_size": 128, "quantization_config": {"quant_method": "compressed-tensors"}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"cost.weight_dtype: must be given"):
        build({"model": "roofline", "gpu": "l4", "llm": str(path)})
    assert build({"model": "roofline", "gpu": "l4", "llm": str(path), "weight_dtype": "int4"}).unit == "ns"


def test_a_gpu_of_ones_own() -> None:
    own = {"tflops": 989, "bandwidth_tb_s": 3.35, "memory_gib": 80, "link_gb_s": 450}
    model = build({"model": "roofline", "llm": "llama-3.1-8b", **own})
    work = work_of([(700, 3)], [50, 60], 1)
    assert model.duration(work) == Roofline(llm="llama-3.1-8b", gpu="h100-sxm").duration(work)
    with pytest.raises(InputError, match=r"cost.gpu: must name a GPU"):
        build({"model": "roofline", "llm": "llama-3.1-8b", "tflops": 1})


# The commands


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    before = sys.argv
    sys.argv = ["batchlab", *words]
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    finally:
        sys.argv = before
    out, err = capsys.readouterr()
    return code, out, err


def test_the_blocks_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(
        '[engine]\npolicy = "vllm"\n[cost]\nmodel = "roofline"\ngpu = "h100-sxm"\nllm = "llama-3.1-8b"\n'
    )
    pasted = "vllm serve Qwen/Qwen3-32B -tp 2 --block-size 32 --gpu-memory-utilization 0.8"
    code, out, err = command(capsys, "cost", str(scenario), "--from-command", pasted, "--json")
    model = Roofline(llm="qwen3-32b", gpu="h100-sxm", tensor_parallel=2)
    assert code == 0 and json.loads(out)["memory"]["num_gpu_blocks"] == model.kv_blocks(0.8, 32, 8192)
    assert "max_num_batched_tokens = 8192" in err
    code, out, err = command(capsys, "cost", "--gpu", "h100-sxm", "--llm", "qwen3-32b", "--from-command", pasted)
    assert (code, out) == (2, "") and "goes with a SCENARIO" in err


def test_cost_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, "cost", "--gpu", "h100-sxm", "--llm", "llama-3.1-8b", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    model = Roofline(llm="llama-3.1-8b", gpu="h100-sxm")
    assert document["memory"]["num_gpu_blocks"] == model.kv_blocks(0.92, 16, 8192)
    steps = {step["step"]: step for step in document["steps"]}
    assert steps["decode 32 x 1,024"]["duration"] == model.duration(work_of([], [1024] * 32))
    assert steps["prefill 2,048"]["duration"] == model.duration(work_of([(2048, 0)], [], 1))
    assert [steps[name]["binds"] for name in ("decode 1 x 1,024", "decode 128 x 1,024", "prefill 512")] == [
        "weights",
        "kv",
        "compute",
    ]


def test_cost_command_of_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "cost", str(EXAMPLE), "--json", "--set", "engine.gpu_memory_utilization=0.8")
    memory = json.loads(out)["memory"]
    assert code == 0 and memory["gpu_memory_utilization"] == 0.8 and memory["max_num_batched_tokens"] == 2048
    code, out, _ = command(capsys, "cost", str(EXAMPLE.parent / "ladder.toml"), "--json")
    assert code == 0 and "memory" not in json.loads(out)
    code, out, err = command(capsys, "cost", str(EXAMPLE), "--llm", "llama-3.1-70b")
    assert code == 1 and "does not fit" in out and err == ""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "batchlab cost: cost.llm: is missing"),
        (["--gpu", "h100", "--llm", "opt-13b"], "--set cost.gpu: 'h100': no such GPU"),
        (["nowhere.toml"], "nowhere.toml: cannot be read"),
        (["--llm", "opt-13b", "--set", "cost=3"], "must be SECTION.KEY=VALUE"),
        ([str(EXAMPLE), "--set", "engine.block_size=0"], "must be at least 1"),
        (["--gpu", "l40s"], "cost.llm: is missing: give a SCENARIO, or --gpu and --llm"),
        (
            ["--gpu", "l40s", "--llm", "qwen2.5-7b", "--set", "engine.gpu_memory_utilisation=0.5"],
            "--set engine.gpu_memory_utilisation: unknown key (did you mean 'gpu_memory_utilization'?)",
        ),
        (
            ["--gpu", "l40s", "--llm", "qwen2.5-7b", "--set", "engin.block_size=8"],
            "--set engin.block_size: no such section (did you mean 'engine'?)",
        ),
        ([str(EXAMPLE), "--set", "engine.max_num_seq=8"], "unknown key (did you mean 'max_num_seqs'?)"),
        (["--gpu", "l40s", "--llm", "qwen2.5-7b", "--set", "cost.tflops=1e-300"], "tflops: 1e-300: must be at least"),
    ],
)
def test_cost_command_refuses(capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    code, out, err = command(capsys, "cost", *words)
    assert (code, out) == (2, "") and told in err and err.count("\n") == 1


def test_tables_of_a_narrow_terminal_are_folded_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 columns: every number of the wide table stands somewhere, whole."""
    for words in (["cost", "--gpu", "h100-sxm", "--llm", "llama-3.1-8b"], ["catalog"]):
        shown = []
        for width in (200, 60):
            monkeypatch.setattr("batchlab.cli.tables.PIPE_WIDTH", width)
            shown.append(CliRunner().invoke(cli, words).stdout)
        wide, narrow = shown
        table = [line for line in narrow.splitlines() if "GB" not in line or "link" in line]
        assert set(wide.split()) <= set(narrow.split())
        assert max(map(len, (line.rstrip() for line in table))) <= 60


def test_no_time_is_beyond_the_clock() -> None:
    assert [whole(time) for time in (0.2, 1.5, 2.0**70, math.inf, math.nan)] == [1, 2, LONGEST, LONGEST, LONGEST]


def test_catalog_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "catalog", "--json")
    document = json.loads(out)
    assert code == 0 and {"name", "tflops", "origin"} <= set(document["gpus"][0])
    assert next(llm for llm in document["llms"] if llm["name"] == "opt-13b")["parameters"] == 12_850_800_640
    code, out, _ = command(capsys, "catalog")
    assert code == 0 and "h100-sxm" in out and "deepseek-v3" in out


@pytest.mark.skipif(not (SHARED / "measured").is_dir(), reason="the measurements are not here")
def test_the_page_on_accuracy_is_what_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("accuracy_roofline", ROOT / "docs" / "accuracy_roofline.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page(SHARED / "measured") == (ROOT / "docs" / "accuracy-roofline.md").read_text()


@pytest.mark.parametrize("value", ["abc", float("nan"), 5, -1, 0])
def test_a_wrong_utilization_is_refused_where_the_blocks_are_given_too(value: Any) -> None:
    with pytest.raises(InputError, match=r"engine\.gpu_memory_utilization: .*: must be a(bove 0, at most 1| number)"):
        load(EXAMPLE.parent / "vllm.toml", {"engine.gpu_memory_utilization": value})


@pytest.mark.parametrize("value", ["nan", "0", "1.5", "-1"])
@pytest.mark.parametrize("knows_memory", [False, True])
def test_a_wrong_utilization_is_refused_in_a_command(value: str, knows_memory: bool) -> None:
    with pytest.raises(InputError, match=f"--gpu-memory-utilization: .*{value}.*: must be above 0, at most 1"):
        parse(f"vllm serve M --gpu-memory-utilization={value}", knows_memory)
