"""The controlled experiment with a real engine: it comes up with each value, answers all, and is gone afterwards."""

import json
import shlex
import sys
from pathlib import Path

import pytest
import serving
from click.testing import CliRunner

from batchlab.cli.commands import cli

pytest.importorskip("aiohttp")
SCENARIO = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 128
num_gpu_blocks = 41
block_size = 32
[cost]
model = "linear"
unit = "ns"
per_iteration = 2_000_000
prefill_token = 20_000
[workload.generate]
num_prompts = 24
seed = 3
arrivals = "poisson"
request_rate = 12
prompt = { distribution = "uniform", min = 10, max = 400 }
output = { distribution = "uniform", min = 4, max = 20 }
"""


def test_one_round(model: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(SCENARIO)
    settings = {**serving.SETTINGS, "max_num_batched_tokens": "{value}", "load_format": "dummy", "enforce_eager": True}
    flags = serving._flags({**settings, "distributed_executor_backend": "uni", "host": "127.0.0.1", "port": "{port}"})
    engine = shlex.join([sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *flags])
    vary = "engine.max_num_batched_tokens=32,256"
    command = ["experiment", str(scenario), "--vary", vary, "--short=150", "--rounds=1", "--engine", engine, "--json"]
    with serving.environment():
        result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    (arms,) = json.loads(result.stdout)["rounds"]
    assert [arm["value"] for arm in arms] == [32, 256]
    for arm in arms:
        short, long, mixed = arm["measured"]
        assert arm["failed"] == 0 and short["requests"] + long["requests"] <= 24 and mixed["requests"] > 12
        # Samples, a few a second, may all miss the short moments in which the blocks of so small a load are taken.
        assert mixed["kv_use"] is not None and mixed["latency"]["itl"]["p99"] > 0 and mixed["waiting"] is not None
