"""What a GPU has no room for: weights are refused, blocks that somebody gives are told."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batchlab.catalog import find_gpu, find_llm
from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.scenario import load

EXAMPLES = Path(__file__).parents[1] / "examples"
ROOFLINE = str(EXAMPLES / "roofline.toml")
CONVERSATION = str(EXAMPLES / "capacity-conversation.toml")
GIVEN = "engine.num_gpu_blocks"
SLO = ("--slo", "ttft:p99<=500ms")
TOO_LARGE = ("--set", "cost.llm=llama-3.3-70b", "--set", f"{GIVEN}=20000")
BLOCK = 16 * 32 * 2 * 8 * 128 * 2
"""Bytes of a KV block of llama-3.1-8b: tokens, layers, keys and values, KV heads, their width, bf16."""


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def most() -> int:
    memory = find_gpu("h100-sxm").memory_gib * 2**30 * 0.98
    return int((memory - 2 * find_llm("llama-3.1-8b").parameters) // BLOCK)


@pytest.mark.parametrize(
    "words",
    [
        ("run", CONVERSATION, *TOO_LARGE),
        ("compare", CONVERSATION, *TOO_LARGE),
        ("capacity", CONVERSATION, *SLO, *TOO_LARGE, "--gpu-price", "2"),
        ("sweep", CONVERSATION, *TOO_LARGE, "--grid", "engine.max_num_seqs=8", "--jobs", "1", "-o", "none.parquet"),
        ("tune", CONVERSATION, *SLO, *TOO_LARGE),
        ("experiment", CONVERSATION, *TOO_LARGE),
        ("report", ROOFLINE, *TOO_LARGE, "-o", "none.html"),
        ("serve", ROOFLINE, *TOO_LARGE),
        ("bench", "http://127.0.0.1:1", "--scenario", CONVERSATION, *TOO_LARGE),
        ("run", ROOFLINE, "--policy", "chunked", "--set", "engine.prefill_chunk=64", *TOO_LARGE[:2]),
    ],
    ids=lambda words: words[0],
)
def test_weights_that_do_not_fit_are_refused_whoever_says_the_blocks(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*words)
    told = str(done.exception)
    assert isinstance(done.exception, InputError) and not list(tmp_path.iterdir())
    assert "cost.llm: llama-3.3-70b does not fit: weights 141.1 GB and reserve " in told
    assert told.endswith(" GB are missing; tensor_parallel = 2 would fit")


def test_a_command_with_a_model_that_does_not_fit_is_refused() -> None:
    serve = "vllm serve meta-llama/Llama-3.3-70B-Instruct --num-gpu-blocks-override 20000"
    done = call("run", CONVERSATION, "--from-command", serve)
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("--from-command cost.llm: llama-3.3-70b does not fit: weights 141.1 GB")
    assert call("run", ROOFLINE, "--from-command", f"{serve} -tp 2").exit_code == 0


def test_what_is_missing_is_the_weights_over_the_memory() -> None:
    with pytest.raises(InputError) as error:
        load(ROOFLINE, {"cost.llm": "llama-3.1-70b", GIVEN: 5000})
    llm, memory = find_llm("llama-3.1-70b"), find_gpu("h100-sxm").memory_gib * 2**30 * 0.98
    reserve = 2**30 + 2048 * (3 * 28672 + 2 * 8192) * 2  # the runtime, and gate, up, product, residual and sum in bf16
    missing = 2 * llm.parameters + reserve + 16 * 80 * 2 * 8 * 128 * 2 - memory
    assert f"of {memory / 1e9:.1f} GB on h100-sxm, {missing / 1e9:.1f} GB are missing" in str(error.value)


def test_more_blocks_than_all_memory_holds_are_told_and_run() -> None:
    for blocks, notes in ((most(), 0), (most() + 1, 1)):
        (run,) = load(ROOFLINE, {GIVEN: blocks}).runs
        assert len(run.notes) == notes and run.limits.num_gpu_blocks == blocks - 1
    assert run.notes[0].startswith(f"num_gpu_blocks = {most() + 1:,}, but only {most():,} of 16 tokens fit on h100-sxm")
    (run,) = load(ROOFLINE, {GIVEN: most(), "engine.block_size": 32}).runs
    assert f"only {most() // 2:,} of 32 tokens fit" in run.notes[0]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("run", ()),
        ("run", ("--json",)),
        ("run", ("--policy", "vllm,vllm-v0")),
        ("compare", ("--set", "engine.max_num_seqs=4,8")),
        ("capacity", (*SLO, "--seeds", "1", "--requests", "20", "--jobs", "1")),
        ("experiment", ("--jobs", "1")),
    ],
)
def test_the_note_stands_once(name: str, more: tuple[str, ...]) -> None:
    done = call(name, CONVERSATION, "--set", "workload.generate.num_prompts=20", "--set", f"{GIVEN}=1200000", *more)
    assert done.stderr.count("num_gpu_blocks = 1,200,000, but only ") == 1, done.exception
    assert f"only {most():,} of 16 tokens fit on h100-sxm beside the weights of llama-3.1-8b" in done.stderr


def test_who_knows_no_memory_or_counts_otherwise_says_nothing() -> None:
    (run,) = load(EXAMPLES / "vllm.toml", {GIVEN: 10**9}).runs
    assert run.remarks() == []
    (run,) = load(ROOFLINE, {GIVEN: 10**9, "cost.llm": "gpt-oss-120b", "cost.tensor_parallel": 2}).runs
    assert run.remarks() == []  # windows: blocks of groups of layers


def test_cost_says_what_fits_and_what_the_scenario_sets() -> None:
    own = call("cost", ROOFLINE, "--set", f"{GIVEN}=1200").stdout.splitlines()
    line = "the scenario sets num_gpu_blocks = 1,200: 19,200 tokens; this goes before gpu_memory_utilization"
    plain = call("cost", ROOFLINE).stdout.splitlines()
    assert line in own and [other for other in own if other != line] == plain
    document = json.loads(call("cost", ROOFLINE, "--set", f"{GIVEN}=1200", "--json").stdout)
    assert document["memory"]["given_num_gpu_blocks"] == 1200 != document["memory"]["num_gpu_blocks"]
    assert json.loads(call("cost", ROOFLINE, "--json").stdout)["memory"]["given_num_gpu_blocks"] is None
    done = call("cost", ROOFLINE, *TOO_LARGE)
    assert done.exit_code == 1 and "the scenario sets num_gpu_blocks = 20,000: 320,000 tokens\n" in done.stdout
