"""The options that change a scenario are the same for every command that takes one."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from batchlab.cli.commands import cli
from batchlab.cli.large import step_times
from batchlab.errors import InputError
from batchlab.scenario import load

pytestmark = pytest.mark.once

OPTIONS = {"engines": "--policy", "settings": "--set", "from_command": "--from-command", "workload": "--workload"}
EXAMPLES = Path(__file__).parents[1] / "examples"
ONE = ("run", "sweep", "capacity", "tune", "experiment", "serve", "bench")
SEVERAL = ("compare", "report")
SLO = ("--slo", "ttft:p99<=10s")
SCENARIO = """
[engine]
policy = "decode-first"
max_num_seqs = 4
max_num_batched_tokens = 64
prefill_chunk = 16
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000_000
prefill_token = 50_000
decode_token = 100_000
[workload.generate]
num_prompts = 30
seed = 1
arrivals = "poisson"
request_rate = 8
prompt = { distribution = "uniform", min = 5, max = 90 }
output = { distribution = "fixed", value = 4 }
"""
COMMAND = "vllm serve org/m --max-num-seqs 7 --max-num-batched-tokens 48 --num-gpu-blocks-override 500 --port 80"


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return str(path)


def arguments(name: str, scenario: str, folder: Path) -> list[str]:
    """A call of a command that is right in all but what a test adds."""
    output = str(folder / "out")
    return {
        "run": ["run", scenario],
        "compare": ["compare", scenario],
        "report": ["report", scenario, "-o", f"{output}.html"],
        "sweep": ["sweep", scenario, "--grid", "engine.block_size=16,32", "-o", f"{output}.parquet", "--jobs", "1"],
        "capacity": ["capacity", scenario, *SLO, "--seeds", "1", "--jobs", "1"],
        "tune": ["tune", scenario, *SLO, "--space", "engine.block_size=16,32", "--trials", "2", "--jobs", "1"],
        "experiment": ["experiment", scenario, "--vary", "engine.block_size=16,32", "--short", "40", "--jobs", "1"],
        "serve": ["serve", scenario, "--port", "0"],
        "bench": ["bench", "http://127.0.0.1:9", "--scenario", scenario],
    }[name]


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def declared(name: str) -> dict[str, click.Option]:
    found = {p.name: p for p in cli.commands[name].params if isinstance(p, click.Option)}
    return {key: found[key] for key in OPTIONS if key in found}


@pytest.mark.parametrize(("names", "missing"), [(ONE, {"serve": ["workload"]}), (SEVERAL, {})])
def test_all_commands_have_the_same_options(names: tuple[str, ...], missing: dict[str, list[str]]) -> None:
    first = declared(names[0])
    assert [first[key].opts[0] for key in OPTIONS] == list(OPTIONS.values())
    for name in names:
        own = declared(name)
        assert [key for key in OPTIONS if key not in own] == missing.get(name, [])
        for key, option in own.items():
            assert (option.opts, option.help, option.metavar) == (
                first[key].opts,
                first[key].help,
                first[key].metavar,
            )


@pytest.mark.parametrize("name", [*ONE, *SEVERAL])
def test_what_cannot_be_read_is_refused_by_all(name: str, scenario: str, tmp_path: Path) -> None:
    done = call(*arguments(name, scenario, tmp_path), "--from-command", "vllm serve m --max-num-seqs many")
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("--from-command --max-num-seqs: 'many': must be a whole number")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("name", [name for name in (*ONE, *SEVERAL) if name != "sweep"])  # there each row has its error
def test_a_wrong_value_of_the_command_is_the_commands(name: str, scenario: str, tmp_path: Path) -> None:
    command = "vllm serve m --max-num-seqs 0 --max-num-batched-tokens 9"
    done = call(*arguments(name, scenario, tmp_path), "--from-command", command)
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == "--from-command engine.max_num_seqs: 0: must be at least 1"
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("name", [name for name in (*ONE, *SEVERAL) if name not in ("serve", "bench")])
def test_every_command_takes_its_settings_from_the_command(name: str, scenario: str, tmp_path: Path) -> None:
    done = call(*arguments(name, scenario, tmp_path), "--from-command", COMMAND, *json_of(name))
    assert done.exit_code == 0, (done.output, done.exception)
    assert "not modelled, ignored: --port" in done.stderr
    assert "as vLLM has it on a GPU: enable_prefix_caching = true, async_scheduling = true" in done.stderr
    said = "the command says model 'org/m', of which [cost] model = 'linear' knows nothing: times are of [cost]"
    assert said in done.stderr
    by_hand = ["--policy", "vllm"]
    for key, value in (
        ("max_num_seqs", 7),
        ("max_num_batched_tokens", 48),
        ("num_gpu_blocks", 500),
        ("enable_prefix_caching", "true"),
        ("async_scheduling", "true"),
    ):
        by_hand += ["--set", f"engine.{key}={value}"]
    page = (tmp_path / "out.html").read_text() if name == "report" else ""
    for path in tmp_path.glob("out*"):
        path.unlink()
    other = call(*arguments(name, scenario, tmp_path), *by_hand, *json_of(name))
    assert other.exit_code == 0
    if name == "report":
        assert (tmp_path / "out.html").read_text() == page
        return
    documents = [json.loads(one.stdout) for one in (done, other)]
    if name == "tune":  # says the command that was pasted, or makes one
        assert [document.pop("command")[:18] for document in documents] == ["vllm serve org/m -", "vllm serve MODEL -"]
    assert documents[0] == documents[1]


def json_of(name: str) -> list[str]:
    return [] if name == "report" else ["--json"]


def test_what_other_options_say_goes_before_the_command(scenario: str, tmp_path: Path) -> None:
    sweep = ["sweep", scenario, "--grid", "engine.max_num_seqs=3,5", "-o", str(tmp_path / "o.parquet"), "--json"]
    done = call(*sweep, "--from-command", COMMAND, "--set", "engine.max_num_batched_tokens=32", "--jobs", "1")
    document = json.loads(done.stdout)
    assert [row["engine.max_num_seqs"] for row in document["rows"]] == [3, 5]
    assert all(row["error"] is None and row["engine"] == "vllm" for row in document["rows"])
    assert document["settings"]["engine.max_num_batched_tokens"] == 32
    assert "engine.max_num_seqs" not in document["settings"]
    assert document["settings"]["engine.num_gpu_blocks"] == 500


def test_other_policies_than_vllm_take_what_they_know(scenario: str) -> None:
    done = call("run", scenario, "--policy", "decode-first", "--from-command", COMMAND, "--json")
    assert done.exit_code == 0
    (run,) = json.loads(done.stdout)["runs"]
    assert run["engine"] == "decode-first"
    done = call("run", scenario, "--set", "engine.policy=decode-first", "--from-command", COMMAND + " --watermark 0.1")
    assert "decode-first does not take these settings of the command, ignored: num_gpu_blocks, watermark" in done.stderr
    assert "policy decode-first" in done.stdout and "max_num_seqs = 7" in done.stdout
    compared = call("compare", scenario, "--policy", "decode-first,vllm", "--from-command", COMMAND, "--json")
    assert [one["settings"]["policy"] for one in json.loads(compared.stdout)["variants"]] == ["decode-first", "vllm"]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sweep", ["--set", "engine.block_size=8"], "--set engine.block_size: 8: --grid has this key too"),
        ("tune", ["--set", "engine.block_size=8"], "--set engine.block_size: 8: --space has this key too"),
        ("experiment", ["--set", "engine.block_size=8"], "--set engine.block_size: 8: --vary has this key too"),
        ("capacity", ["--policy", "vllm,sarathi"], "--policy: 'vllm,sarathi': must be one policy here"),
        ("run", ["--policy", "vllm,"], "--policy: 'vllm,': must be a name, or several with commas"),
        ("run", ["--policy", "vllm", "--policy", "vllm"], "--policy: 'vllm': given twice"),
    ],
)
def test_options_that_do_not_go_together(
    name: str, options: list[str], said: str, scenario: str, tmp_path: Path
) -> None:
    done = call(*arguments(name, scenario, tmp_path), *options)
    assert isinstance(done.exception, InputError) and str(done.exception) == said


def test_bench_without_a_scenario_has_none_to_change() -> None:
    for options in (["--set", "a.b=1"], ["--policy", "vllm"], ["--from-command", "vllm serve m"], ["--workload", "f"]):
        done = call("bench", "http://127.0.0.1:9", *options)
        assert isinstance(done.exception, InputError)
        assert str(done.exception) == f"{options[0]}: {options[1]!r}: needs --scenario: it changes that"


ROOFLINE = SCENARIO[: SCENARIO.index("[cost]")].replace("decode-first", "vllm").replace("prefill_chunk = 16\n", "") + (
    '[cost]\nmodel = "roofline"\ngpu = "h100-sxm"\nllm = "llama-3.1-8b"\ntensor_parallel = 2\n'
    + SCENARIO[SCENARIO.index("[workload") :]
)


@pytest.fixture
def roofline(tmp_path: Path) -> str:
    path = tmp_path / "r.toml"
    path.write_text(ROOFLINE)
    return str(path)


def facts(scenario: str, command: str, *options: str) -> tuple[dict[str, Any], str]:
    """What `compare` says that a run has, and what is said on stderr."""
    done = call("compare", scenario, "--from-command", command, "--json", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)["common"], done.stderr


def test_a_cost_of_model_and_gpu_is_that_of_the_command(roofline: str) -> None:
    has, told = facts(roofline, "vllm serve Qwen/Qwen2.5-72B-Instruct-AWQ -tp 4 --kv-cache-dtype fp8 --dtype half")
    assert has["cost.llm"] == "qwen2.5-72b" and has["cost.tensor_parallel"] == 4
    assert has["cost.weight_dtype"] == "int4" and has["cost.kv_dtype"] == "fp8" and has["cost.dtype"] == "fp16"
    assert has["engine.gpu_memory_utilization"] == 0.92  # vLLM's default
    taken = re.search(r"\[cost\] takes from the command: (.*)", told)
    assert taken and "llm = qwen2.5-72b instead of llama-3.1-8b" in taken[1]
    assert "tensor_parallel = 4 instead of 2" in taken[1]
    assert "times are of [cost]" not in told
    has, told = facts(roofline, "vllm serve meta-llama/Meta-Llama-3.1-8B-Instruct -tp 2 --dtype auto")
    assert has["cost.llm"] == "llama-3.1-8b" and has["cost.tensor_parallel"] == 2
    assert "[cost]" not in told
    has, told = facts(roofline, "vllm serve meta-llama/Llama-3.1-8B")  # vLLM's tensor-parallel size is 1
    assert has["cost.tensor_parallel"] == 1
    assert "not in the command, [cost] as vLLM has it: tensor_parallel = 1 instead of 2" in told
    has, told = facts(roofline, "vllm serve meta-llama/Llama-3.1-8B -tp 8", "--set", "cost.tensor_parallel=1")
    assert has["cost.tensor_parallel"] == 1 and "[cost]" not in told


def test_what_a_line_leaves_open_is_said(roofline: str) -> None:
    has, told = facts(roofline, "vllm serve --max-num-seqs 4; vllm serve Qwen/Qwen3-8B --max-num-seqs 8")
    assert has["engine.max_num_seqs"] == 4 and has["cost.llm"] == "llama-3.1-8b"
    assert "no model in the command: [cost] has llm = llama-3.1-8b" in told
    assert "not modelled, ignored: another `vllm serve` behind it" in told
    told = facts(roofline, "vllm serve Qwen/Qwen3-8B --max-num-seqs 4")[1]
    assert "no model" not in told and "another" not in told


def test_variables_and_an_older_image_are_said(roofline: str) -> None:
    told = facts(roofline, "VLLM_USE_V1=0 VLLM_PORT=1 HF_HOME=/a vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 4")[
        1
    ]
    assert "though the engine runs otherwise with it: VLLM_USE_V1\n" in told
    assert "not modelled, ignored: VLLM_PORT\n" in told and "HF_HOME" not in told
    command = "docker run -e VLLM_USE_V1=1 vllm/vllm-openai:v{} --model meta-llama/Llama-3.1-8B --max-num-seqs 4"
    told = facts(roofline, command.format("0.11.0"))[1]
    assert "it: VLLM_USE_V1\n" in told and "the image's version 0.11.0 (rules and defaults are those of 0.32.0)" in told
    for same in ("0.32.0", "0.32", "0.32.0.0"):
        assert "image's version" not in facts(roofline, command.format(same))[1]
    for other in ("0.32.1", "0.3.2", "0.32.0rc1"):
        assert f"image's version {other} " in facts(roofline, command.format(other))[1]
    flags = "docker run --gpus all --env VLLM_USE_V1=0 --ipc=host vllm/vllm-openai:v0.10.0 {} --max-num-seqs 4"
    for model in ("--model Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "vllm serve Qwen/Qwen3-8B"):
        has, told = facts(roofline, flags.format(model))
        assert "it: VLLM_USE_V1\n" in told and "version 0.10.0" in told and "--gpus" not in told
        assert has["cost.llm"] == "qwen3-8b" and has["engine.max_num_seqs"] == 4


def test_step_times_name_what_is_not_bf16(roofline: str) -> None:
    run = load(roofline, {"cost.kv_dtype": "fp8", "cost.weight_dtype": "int4"}).runs[0]
    assert step_times(run.cost).endswith("tensor_parallel = 2, weight_dtype = int4, kv_dtype = fp8")


def test_what_a_cost_does_not_follow_names_both(roofline: str, tmp_path: Path) -> None:
    shape = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
    shape |= {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    Path(roofline).write_text(ROOFLINE.replace('"llama-3.1-8b"', '"config.json"'))
    has, told = facts(roofline, "vllm serve /models/mine --quantization bitsandbytes -tp 4")
    assert has["cost.llm"] == "config.json" and has["cost.tensor_parallel"] == 4
    assert (
        "the command says model '/models/mine', [cost] llm = config.json; "
        "--quantization bitsandbytes, [cost] weight_dtype = bf16: times are of [cost]" in told
    )
    assert "--set cost.llm=PATH.json" in told
    cost = ROOFLINE[ROOFLINE.index("[cost]") : ROOFLINE.index("[workload")]
    (tmp_path / "cost.toml").write_text(cost)
    Path(roofline).write_text(ROOFLINE.replace(cost, '[cost]\nfrom = "cost.toml"\n'))
    has, told = facts(roofline, "vllm serve meta-llama/Llama-3.1-8B -tp 4 -pp 1")
    assert has["cost.tensor_parallel"] == 2
    assert "the command says --tensor-parallel-size 4, [cost] tensor_parallel = 2: times are of [cost]" in told


def test_the_share_of_memory_is_among_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(ROOFLINE.replace('"vllm"\n', '"vllm"\ngpu_memory_utilization = 0.8\n', 1))
    _, told = facts(str(path), "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 9")
    assert re.search(
        r"from the file: .*max_num_batched_tokens = 64 \(vLLM: 8192\), gpu_memory_utilization = 0.8 \(vLLM: 0.92\)",
        told,
    )
    _, told = facts(str(path), "vllm serve meta-llama/Llama-3.1-8B --num-gpu-blocks-override 4000")
    assert "gpu_memory_utilization" not in told


def test_what_a_command_leaves_out_of_the_cost_is_as_vllm_has_it(roofline: str) -> None:
    stored = 'tensor_parallel = 2\npipeline_parallel = 4\nweight_dtype = "fp8"\nkv_dtype = "fp8"\ndtype = "fp16"\n'
    Path(roofline).write_text(ROOFLINE.replace("tensor_parallel = 2\n", stored))
    has, told = facts(roofline, "vllm serve Qwen/Qwen3-32B --kv-cache-dtype auto")
    assert has["cost.tensor_parallel"] == has["cost.pipeline_parallel"] == 1
    assert has["cost.dtype"] == has["cost.weight_dtype"] == has["cost.kv_dtype"] == "bf16"
    assert "weight_dtype = the model's own instead of fp8" in told and "pipeline_parallel = 1 instead of 4" in told
    has, told = facts(roofline, "vllm serve Qwen/Qwen3-32B-FP8", "--set", "cost.tensor_parallel=8")
    assert has["cost.tensor_parallel"] == 8 and has["cost.weight_dtype"] == "fp8"
    assert "tensor_parallel = 1" not in told and "weight_dtype" not in told
    has, told = facts(roofline, "vllm serve --max-num-seqs 4")  # names no model: the file's, as it stands there
    assert has["cost.tensor_parallel"] == 2 and has["cost.kv_dtype"] == "fp8"


def test_a_model_that_the_catalog_does_not_know_is_not_simulated_as_another(roofline: str) -> None:
    done = call("run", roofline, "--from-command", "vllm serve Qwen/Qwen3-33B -tp 2")
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == (
        "--from-command: model: 'Qwen/Qwen3-33B': not in the catalog: --set "
        "cost.llm=PATH/config.json for its own, or --set cost.llm=NAME to use another's shape on purpose "
        "(`batchlab catalog` lists them)"
    )
    has, _ = facts(roofline, "vllm serve Qwen/Qwen3-33B -tp 4", "--set", "cost.llm=qwen3-32b")
    assert has["cost.llm"] == "qwen3-32b" and has["cost.tensor_parallel"] == 4


LINEAR = '[cost]\nmodel = "linear"\nunit = "ns"\nper_iteration = 1000000\n'


@pytest.mark.parametrize("key", ["max_num_seqs", "max_num_batched_tokens"])
def test_a_limit_that_nobody_says_is_the_commands_to_say_where_no_gpu_is_known(key: str, roofline: str) -> None:
    cost = ROOFLINE[ROOFLINE.index("[cost]") : ROOFLINE.index("[workload")]
    Path(roofline).write_text(re.sub(f"\n{key} = .*", "", ROOFLINE.replace(cost, LINEAR)))
    flag = f"--{key.replace('_', '-')}"
    done = call("run", roofline, "--from-command", "vllm serve Qwen/Qwen3-32B -tp 2")
    said = f"--from-command: {flag}: vLLM's default depends on the GPU: add {flag} N to the command"
    assert isinstance(done.exception, InputError) and str(done.exception) == said
    done = call("run", roofline, "--from-command", "vllm serve Qwen/Qwen3-32B -tp 2", "--set", f"engine.{key}=64")
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("gpu", "more", "seqs", "tokens"),
    [
        ("h100-sxm", "", 1024, 8192),
        ("b200", "", 1024, 16384),
        ("a100-80-sxm", "", 256, 2048),
        ("l40s", "", 256, 2048),
        ("h100-sxm", " --max-num-batched-tokens 512", 512, 512),
        ("h100-sxm", " --max-num-seqs 4 --max-model-len 600", 4, 2400),
        ("l40s", " --max-model-len 4k --no-enable-chunked-prefill", 256, 4000),
    ],
)
def test_a_limit_that_nobody_says_is_vllms_by_the_gpu(
    gpu: str, more: str, seqs: int, tokens: int, roofline: str
) -> None:
    Path(roofline).write_text(re.sub("\n(max_num_seqs|max_num_batched_tokens) = .*", "", ROOFLINE))
    has, told = facts(roofline, "vllm serve Qwen/Qwen3-32B -tp 8" + more, "--set", f"cost.gpu={gpu}")
    assert (has["engine.max_num_seqs"], has["engine.max_num_batched_tokens"]) == (seqs, tokens)
    if not more:
        line = next(line for line in told.splitlines() if "as vLLM has it on a GPU" in line)
        assert f"gpu_memory_utilization = 0.92, max_num_seqs = {seqs}, max_num_batched_tokens = {tokens}" in line


def test_milliseconds_say_of_which_gpu_and_model_they_are(roofline: str, tmp_path: Path) -> None:
    command = ("--from-command", "vllm serve Qwen/Qwen3-32B -tp 2")
    for name in ("run", "sweep", "capacity", "tune", "experiment"):
        done = call(*arguments(name, roofline, tmp_path), *command)
        assert "\nstep times: roofline, qwen3-32b on h100-sxm, tensor_parallel = 2\n" in f"\n{done.stdout}", name
    compared = " ".join(call("compare", roofline, *command).stdout.split())
    for said in ("llm = qwen3-32b", "gpu = h100-sxm", "tensor_parallel = 2"):
        assert said in compared
    grid = (
        "sweep",
        roofline,
        "--grid",
        "cost.llm=qwen3-32b,llama-3.1-8b",
        "-o",
        str(tmp_path / "g.parquet"),
        "--jobs",
        "1",
    )
    assert call(*grid).stdout.startswith("step times: roofline, h100-sxm, tensor_parallel = 2\n")
    assert "step times" not in call("run", str(EXAMPLES / "vllm.toml")).stdout


def test_a_prefix_cache_that_can_find_nothing_is_said_once(roofline: str) -> None:
    said = "prompts share no tokens: prefix caching finds only what preempted requests left behind"
    cached = ("--set", "engine.enable_prefix_caching=true", "--set", "engine.num_gpu_blocks=500")
    for name in ("run", "compare"):
        assert call(name, roofline, *cached).stderr.count(said) == 1
        assert said not in call(name, roofline).stderr
        shared = call(name, roofline, *cached, "--set", "workload.generate.shared_prefix=32")
        assert shared.exit_code == 0 and said not in shared.stderr


def test_a_block_of_very_many_tokens_is_refused() -> None:
    assert load(EXAMPLES / "vllm.toml", {"engine.block_size": 2**16}).runs
    with pytest.raises(InputError, match=r"^--set engine\.block_size: 65537: must be at most 65536$"):
        load(EXAMPLES / "vllm.toml", {"engine.block_size": 2**16 + 1})
