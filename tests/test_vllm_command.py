"""A pasted `vllm serve` command as settings."""

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from batchlab.catalog import llm_names
from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.redacted import is_secret
from batchlab.shell_line import tokens
from batchlab.vllm_command import known_as, parse, server_in
from batchlab.vllm_flags import command_for, rewritten

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_every_flag_is_read() -> None:
    command = parse(
        "VLLM_USE_V1=1 vllm serve meta-llama/Llama-3.1-8B --host 0.0.0.0 --max-num-seqs 128 "
        "--max-num-batched-tokens=2k "
        "--long-prefill-token-threshold 1024 --no-enable-chunked-prefill --block-size 32 --max-model-len 16K "
        "--num-gpu-blocks-override 2588 --scheduling-policy priority --watermark 0.01 --no-scheduler-reserve-full-isl "
        "--async-scheduling --max-num-queued-reqs 64 --max-num-queued-tokens 100000 --port 8000"
    )
    assert command.settings == {
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2000,
        "long_prefill_token_threshold": 1024,
        "enable_chunked_prefill": False,
        "block_size": 32,
        "max_model_len": 16384,
        "num_gpu_blocks": 2588,
        "scheduling_policy": "priority",
        "watermark": 0.01,
        "scheduler_reserve_full_isl": False,
        "async_scheduling": True,
        "max_num_queued_reqs": 64,
        "max_num_queued_tokens": 100000,
        "enable_prefix_caching": True,
    }
    assert command.unknown == ["--host", "--port"]


def test_prefix_caching_is_vllms_default_only_where_blocks_are_known() -> None:
    assert "enable_prefix_caching" not in parse("vllm serve M --max-num-seqs 8 --enable-prefix-caching").settings
    assert parse("vllm serve M --num-gpu-blocks-override 9 --no-enable-prefix-caching").settings == {
        "num_gpu_blocks": 9,
        "enable_prefix_caching": False,
        "async_scheduling": True,
    }


def test_blocks_that_the_scenario_says_are_blocks_to_cache_in(tmp_path: Path) -> None:
    assert parse("vllm serve m", has_blocks=True).settings["enable_prefix_caching"] is True
    path = tmp_path / "s.toml"
    load = '[workload]\nrequests = [{ id = "A", arrival = 0, prompt = 6, output = 3 }]\n'
    for blocks, caching in (("num_gpu_blocks = 99\n", "true"), ("", None)):
        path.write_text(
            f'[engine]\npolicy = "vllm"\nmax_num_seqs = 4\nmax_num_batched_tokens = 64\n{blocks}'
            f'[cost]\nmodel = "unit"\n{load}'
        )
        done = CliRunner().invoke(cli, ["run", str(path), "--from-command", "vllm serve m --no-async-scheduling"])
        said = re.search(r"enable_prefix_caching = (\w+)", done.output)
        assert done.exit_code == 0 and (said and said[1]) == caching


def test_the_share_of_memory_counts_only_where_the_cost_model_knows_the_gpu() -> None:
    text = "vllm serve llama-3.1-8b --max-num-seqs 64 --max-num-batched-tokens 2048 --gpu-memory-utilization 0.5"
    assert parse(text, knows_memory=True).settings["gpu_memory_utilization"] == 0.5
    assert parse(text, knows_memory=True).settings["enable_prefix_caching"] is True
    ignored = parse(text)
    assert not {"gpu_memory_utilization", "enable_prefix_caching"} & ignored.settings.keys()
    assert ignored.unknown == [
        "--gpu-memory-utilization (needs a cost model that knows GPU and model, such as roofline)"
    ]
    blocks = []
    for share in (0.5, 0.9):
        found = run("roofline.toml", text.replace("0.5", str(share)))
        assert "ignored" not in found.stderr and "num_gpu_blocks" not in found.stderr
        shown = re.search(r"num_gpu_blocks = (\d+) usable, .*gpu_memory_utilization = ([0-9.]+)", found.stdout)
        assert shown is not None and float(shown[2]) == share
        blocks.append(int(shown[1]))
    assert 0 < blocks[0] < blocks[1]
    assert "not modelled, ignored: --gpu-memory-utilization (needs a cost" in run("vllm.toml", text).stderr


def run(example: str, command: str) -> Result:
    found = CliRunner().invoke(cli, ["run", str(EXAMPLES / example), "--from-command", command])
    assert found.exit_code == 0
    return found


def test_line_continuations_and_underscores() -> None:
    command = parse("python -m vllm.entrypoints.openai.api_server \\\n  --model M \\\n  --max_num_seqs 4")
    assert command.settings == {"max_num_seqs": 4, "async_scheduling": True}
    assert command.unknown == [] and list(command.cost) == ["llm"]


def test_what_the_cost_says_is_named() -> None:
    text = "vllm serve org/M -tp 2 --dtype bfloat16 --quantization=fp8 --kv-cache-dtype fp8 --max-num-seqs 64"
    found = parse(text)
    assert found.cost == {
        "llm": "org/M",
        "tensor_parallel": "2",
        "dtype": "bfloat16",
        "weight_dtype": "fp8",
        "kv_dtype": "fp8",
    }
    assert found.settings["max_num_seqs"] == 64 and found.unknown == []
    said = (
        "the command says model 'org/M', --tensor-parallel-size 2, --dtype bfloat16, --quantization fp8, "
        "--kv-cache-dtype fp8, of which [cost] model = 'linear' knows nothing: times are of [cost]"
    )
    assert said in run("vllm.toml", text + " --max-num-batched-tokens 64 --num-gpu-blocks-override 50").stderr


def test_the_command_of_another_engine_is_not_just_taken_for_vllms() -> None:
    assert "ignored: `sglang serve`, which is read as vLLM's" in run("vllm.toml", "sglang serve m").stderr
    for line in ("vllm serve m", "/opt/bin/vllm serve m", "serve m", "python -m vllm.entrypoints.cli.main serve m"):
        assert "read as" not in run("vllm.toml", line).stderr


def test_a_misspelt_flag_is_not_just_ignored() -> None:
    assert parse("vllm serve M --max-num-seq 4").unknown == ["--max-num-seq (did you mean 'max-num-seqs'?)"]


@pytest.mark.parametrize(
    "text", ["", "vllm", "vllm serve 'M", "vllm serve M --max-num-seqs many", "vllm serve M --max-num-seqs"]
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    if text == "vllm":
        with pytest.raises(InputError, match="must be a command"):
            parse(text)
    else:
        with pytest.raises(InputError, match="--from-command"):
            parse(text)


PASTED = {
    "docker": (
        "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/models --env HF_TOKEN=x "
        "-p 8000:8000 --ipc=host vllm/vllm-openai:latest --model Qwen/Qwen3-32B -tp 2 --max-num-seqs 128",
        {"max_num_seqs": 128},
        {"llm": "Qwen/Qwen3-32B", "tensor_parallel": "2"},
        [],
    ),
    "json": (
        "VLLM_LOGGING_LEVEL=DEBUG CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-70B-Instruct \\\r\n"
        '  --compilation-config \'{"level": 3, "cudagraph_mode": "FULL"}\' \\\r\n'
        "  --trust-remote-code -tp=2 \\ \n --max-model-len 16k --enable-prefix-caching > vllm.log 2>&1 &",
        {"max_model_len": 16000},
        {"llm": "meta-llama/Llama-3.1-70B-Instruct", "tensor_parallel": "2"},
        [],
    ),
    "speculative": (
        'uv run --with vllm vllm serve Qwen/Qwen2.5-7B-Instruct --speculative-config \'{"method": "ngram"}\' '
        "-dp 2 --enforce-eager -O3 --max_num_batched_tokens=8192 --max-model-len auto # as on Friday",
        {"max_num_batched_tokens": 8192},
        {"llm": "Qwen/Qwen2.5-7B-Instruct"},
        ["--speculative-config", "--data-parallel-size", "--enforce-eager"],
    ),
    "model last": (
        "vllm serve --no-enable-prefix-caching google/m --served-model-name a b --api-key 'se cret' "
        "--gpu-memory-utilization .92",
        {"enable_prefix_caching": False},
        {"llm": "google/m"},
        [],
    ),
    "without graphs": (
        "vllm serve m -cc.cudagraph_mode=NONE -cc.mode=3 --compilation-config.max_cudagraph_capture_size 8",
        {},
        {"llm": "m"},
        ["--compilation-config.cudagraph_mode=NONE"],
    ),
    "without graphs, in JSON": (
        'vllm serve m -cc \'{"cudagraph_mode": "none"}\'',
        {},
        {"llm": "m"},
        ["--compilation-config.cudagraph_mode=NONE"],
    ),
    "module": (
        "python3 -m vllm.entrypoints.openai.api_server --model=/models/x --tensor-parallel-size 4 "
        "--pipeline-parallel-size 2 --dtype auto --max-num-seqs 1K",
        {"max_num_seqs": 1024},
        {"llm": "/models/x", "tensor_parallel": "4", "pipeline_parallel": "2"},
        [],
    ),
}


@pytest.mark.parametrize("name", PASTED)
def test_commands_as_people_paste_them(name: str) -> None:
    text, settings, cost, matters = PASTED[name]
    found = parse(text, knows_memory=True)
    assert found.settings.items() >= settings.items()
    assert found.cost == cost and found.matters == matters
    assert not any("cret" in flag or "{" in flag for flag in found.unknown)


def test_a_switch_of_an_old_vllm_with_a_value_is_not_read_as_on() -> None:
    for text in ("--enable-chunked-prefill False", "--enable-prefix-caching=true"):
        with pytest.raises(InputError, match="takes no value: --enable-"):
            parse(f"vllm serve M {text}")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", ("llama-3.1-8b", None)),
        ("meta-llama/Meta-Llama-3.1-70B", ("llama-3.1-70b", None)),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", ("llama-3.1-8b", "fp8")),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", ("qwen2.5-7b", "int8")),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", ("llama-3.1-8b", "int4")),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", ("qwen3-30b-a3b", None)),
        ("mistralai/Mistral-7B-Instruct-v0.3", ("mistral-7b", None)),
        ("deepseek-ai/DeepSeek-V3-0324", ("deepseek-v3", None)),
        ("openai/gpt-oss-120b", ("gpt-oss-120b", None)),
        ("Qwen/Qwen2.5-7B-Math", (None, None)),
        ("deepseek-ai/DeepSeek-V3.2-Exp", (None, None)),
        ("mine", (None, None)),
        ("", (None, None)),
    ],
)
def test_models_of_hugging_face_by_their_names(name: str, known: tuple[str | None, str | None]) -> None:
    assert known_as(name) == known


@pytest.mark.parametrize(
    ("command", "changed", "new"),
    [
        ("vllm serve M", {"max_num_seqs": "--max-num-seqs 4"}, "vllm serve M --max-num-seqs 4"),
        (
            "A=1 vllm serve M --max_num_seqs=9 -tp 2 \\\n  --chat-template 'a b' > log 2>&1 & # mine",
            {
                "max_num_seqs": "--max-num-seqs 4",
                "tensor_parallel": "--tensor-parallel-size 1",
                "watermark": "--watermark 0.1",
            },
            "A=1 vllm serve M --max-num-seqs 4 --tensor-parallel-size 1 "
            "--chat-template 'a b' --watermark 0.1 > log 2>&1 &",
        ),
        (
            "vllm serve --enable-prefix-caching M --max-num-seqs 9 --max-num-seqs 8",
            {"enable_prefix_caching": "--no-enable-prefix-caching", "max_num_seqs": "--max-num-seqs 4"},
            "vllm serve --no-enable-prefix-caching M --max-num-seqs 4",
        ),
        (
            "python -m vllm.entrypoints.openai.api_server --model=M --long-prefill-token-threshold 8 --enable-lora",
            {"long_prefill_token_threshold": "--long-prefill-token-threshold 16"},
            "python -m vllm.entrypoints.openai.api_server --model=M --long-prefill-token-threshold 16 --enable-lora",
        ),
    ],
)
def test_flags_are_replaced_where_they_stand(command: str, changed: dict[str, str], new: str) -> None:
    assert rewritten(command, changed) == new


@pytest.mark.parametrize(
    "command",
    [
        "HF_TOKEN=S3 vllm serve M --api-key S3 --port 8 > log",
        "docker run -e HF_TOKEN='S 3' --env=AWS_SECRET_ACCESS_KEY=S=3 image vllm serve M --api-key=S3 --port 8",
        "export OPENAI_API_KEY=S3; vllm serve M --port 8 --api-key S3 S3",
        "vllm serve M --port 8 --hf-token S3 && echo S",
        "vllm serve M --hugging-face-hub-token S3 --ssl-keyfile-password=S3 --port 8",
        "vllm serve M --api-key -sk-S3 --port 8",
        "vllm serve M --api-key '$S3' --hf-token \"${A}S3\" --port 8",
        "HF_TOKEN+=S3 APIKEY=S3 DB_PASS=S3 HF_AUTH=S3 AWS_ACCESS_KEY_ID=S3 vllm serve M --port 8",
    ],
)
def test_what_is_passed_on_has_no_secrets(command: str) -> None:
    found = rewritten(command, {"max_num_seqs": "--max-num-seqs 5"})
    assert "3" not in found and "'***'" in found
    assert "vllm serve M" in found and "--port 8" in found and "--max-num-seqs 5" in found
    assert ("&& echo S" in command) == ("&& echo ..." in found)
    assert parse(found).settings == parse(command).settings | {"max_num_seqs": 5}


def test_other_words_are_no_secrets() -> None:
    command = "HF_HOME=/a HF_TOKEN=$T vllm serve M --ssl-keyfile k.pem --api-key $KEY `pass` --max-num-batched-tokens 9"
    assert rewritten(command, {}) == command


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        *((name, "S3", True) for name in ("PGPASSWORD", "DB_PWD", "HFTOKEN", "HF_TOKENS", "TOKEN_HF", "HF_TOKEN_READ")),
        *((name, "S3", True) for name in ("--api-keys", "hf.token", "accessToken", "X-Api-Key", "Authorization", "PW")),
        *((name, "345", True) for name in ("PGPASSWORD", "HF_TOKEN", "AWS_ACCESS_KEY_ID")),
        *((name, "2048", False) for name in ("--max_num_batched_token", "--max-num-batched-tokens", "eos_token_id")),
        *((name, "2k", False) for name in ("max_tokens", "num_key_value_heads", "long-prefill-token-threshold")),
        *((name, "S3", False) for name in ("--tokenizer", "--ssl-keyfile", "PWD", "author", "HF_HOME", "keyed")),
        ("use_auth", "true", False),
        ("max_tokens", "S3", True),
        *((name, "S3", True) for name in ("jwt", "GH_PAT", "Cookie", "session", "sig", "X-Amz-Signature", "otp")),
        *((name, "S3", True) for name in ("bearer", "PASSCODE", "use-auth-token", "sessionId")),
        *((name, "S3", False) for name in ("--session-timeout", "compat", "path", "design", "--allow-credentials")),
        *((name, "[[0], [0, 0]]", False) for name in ("speculative_token_tree", "--speculative-token-tree")),
        *((name, "<x>", False) for name in ("image_token", "eos_token_id", "tokens_only", "stop_tokens")),
    ],
)
def test_a_name_says_whether_its_value_is_a_secret(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) == secret


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("""--kv '{"token": "S3", "n": 1}'""", """--kv '{"token": "***", "n": 1}'"""),
        ("""--kv='{"a": [{"apiKey": ["S3"]}]}'""", """--kv='{"a": [{"apiKey": "***"}]}'"""),
        ("""--kv "{\\"url\\": \\"redis://u:S3@h:1\\"}\"""", """--kv '{"url": "redis://***@h:1"}'"""),
        ("--kv '{token: S3, n: 1}'", "--kv '{token: ***'"),
        ("--to https://u:p@S3@host/x?token=S3", "--to 'https://***@host/x?token=***'"),
        ("-H 'Authorization: Bearer S3'", "-H 'Authorization: ***'"),
        ("--header 'X-Api-Key: S3 S3'", "--header 'X-Api-Key: ***'"),
        ("--api-keys S3 S3", "--api-keys '***' '***'"),
        ('--to "http://u:S3@$HOST"', "--to '***'"),
        ("""--e '[{"name": "HF_TOKEN", "value": "S3"}]'""", """--e '[{"name": "HF_TOKEN", "value": "***"}]'"""),
        ("-H 'Cookie: session=S3; a=S3'", "-H 'Cookie: ***'"),
        ("--to 'https://h/x?X-Amz-Signature=S3&more=1'", "--to 'https://h/x?X-Amz-Signature=***&more=1'"),
        ("--to 'https://u:S/3?#@h:80/x'", "--to 'https://***@h:80/x'"),
        ("--to u:S3@host", "--to '***@host'"),
        ("--x 'Bearer S3'", "--x 'Bearer ***'"),
        ('--x \'{"a": "basic S3"}\'', '--x \'{"a": "basic ***"}\''),
        *((f"--x {known}S3S3S3S3", "--x '***'") for known in ("hf_", "sk-", "sk-proj-", "ghp_", "github_pat_", "AKIA")),
        *((f"--api-key {put}", "--api-key '***'") for put in ("$(echo S3)", '"`echo S3`"', "${A:-S3}", "<(echo S3)")),
        ("--config <(echo 'api-key: S3')", "--config '***'"),
        ("--x <<< S3", "--x <<< '***'"),
        ("--use-auth-token S3", "--use-auth-token '***'"),
        ("--x 'm --api-key S3 --port 1 --hf-token \"S 3\"'", "--x 'm --api-key *** --port 1 --hf-token ***'"),
        ("--hf-token S3 N", "--hf-token '***' N"),
        ("--x 'max_tokens=5,api_key=S3,n=1'", "--x max_tokens='5,api_key=***,n=1'"),
        *(
            (same, same)
            for same in (
                '-H "Authorization: Bearer $T"',
                "--max_num_batched_token=2048",
                "--max_num_batched_token 2k",
                """--hf-overrides '{"num_key_value_heads":8}'""",
                "--to http://token:8000/x",
                "--allow-credentials N",
                "-v $PWD:/x -v ~/key:/y",
                "--speculative-token-tree '[(0,),(0,0)]'",
                """--x '{"speculative_token_tree":[[0]],"eos_token_id":[1,2],"tokens_only":1,"image_token":"<i>"}'""",
                """--x '{"name":"HF_TOKEN","valueFrom":{"secretKeyRef":{"name":"a","key":"b"}}}'""",
                "--x 'max_tokens=5,temperature=0' --y 'a token of --max-num-batched-tokens 5'",
                "--api-key $(cat ~/key) --hf-token ${T} --to http://h:80/a@b",
                '--api-key $(<key) --api-key "`cat key`" --session-timeout 30',
                "--hf_overrides=a --x r/vllm:v1@sha256:ab --x hf_internal-testing/m",
                """-cc '{"pass_config":{"fuse":true}}' --compilation-config.pass_config.level 3""",
                '-e "HF_TOKEN=$T" -H "X-Api-Key: ${T}"',
            )
        ),
    ],
)
def test_secrets_within_words_are_hidden_and_all_else_is_as_it_was(given: str, shown: str) -> None:
    assert rewritten(f"vllm serve M {given} --port 8", {}) == f"vllm serve M {shown} --port 8"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("docker login -p S3; vllm serve M", "docker ... ; vllm serve M"),
        ("A=1 sudo curl -u a:S3 h > x && vllm serve M | grep S3", "A=1 sudo curl ... > x && vllm serve M | grep ..."),
        ("vllm serve M; docker S3=S3", "vllm serve M ; docker ..."),
        *((same, same) for same in ("cd /m && HF_HOME=/a vllm serve M 2>&1 | tee log", "while true ; do vllm serve M")),
    ],
)
def test_of_other_commands_only_the_program_is_passed_on(given: str, shown: str) -> None:
    assert rewritten(given, {}) == shown


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("docker run -e HF_TOKEN=S3CR img", "'docker ...': must be a command such as"),
        ("HF_TOKEN=S3CR docker", "\"HF_TOKEN='***' docker\": must be a command such as"),
        ("vllm bench serve --api-key S3CR", "'bench serve': is a client's"),
        ("vllm serve m --api-key 'S3CR", "cannot be read as a command line: no end of ' behind character 24"),
        ("vllm serve m --api-key S3CR >", "cannot be read as a command line: no file behind >"),
        ("vllm serve m --api-key x >&;S3CR", "cannot be read as a command line: no file behind >"),
        ("vllm serve 'https://u:S3CR@h/m' -tp 2", "model 'https://***@h/m', --tensor-parallel-size 2, of which [cost]"),
        ("vllm serve m --api-key -S3CR", "of which [cost]"),
        ("vllm serve m --max-num-seqs 'Bearer S3CR'", "--max-num-seqs: 'Bearer ***': must be a whole number"),
    ],
)
def test_what_is_said_of_a_command_has_no_secrets(command: str, said: str) -> None:
    done = CliRunner().invoke(cli, ["run", str(EXAMPLES / "vllm.toml"), "--from-command", command])
    shown = f"{done.output} {done.exception}"
    assert "S3CR" not in shown and said in shown


def test_a_long_line_is_read_as_a_short_one() -> None:
    """By counts, not by times: of what is looked up for each unknown flag there is an end."""
    names = [f"--max-num-seq{'x' * (number % 3)}{number}" for number in range(300)]
    found = parse(" ".join(["vllm serve M", *names, "--max-num-seqs 4", *["--enforce-eager"] * 9]))
    assert found.settings["max_num_seqs"] == 4 and found.matters == ["--enforce-eager"] * 9
    assert [flag.split()[0] for flag in found.unknown] == names
    assert "did you mean 'max-num-seqs'" in found.unknown[0] and found.unknown[-1] == names[-1]


@pytest.mark.parametrize("name", llm_names())
def test_a_command_made_for_a_model_names_that_model(name: str) -> None:
    words = command_for({"llm": name}).split()
    assert words[:2] == ["vllm", "serve"] and known_as(words[2])[0] == name


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve M --max-num-seqs 64 | tee log --max-num-seqs 128 && vllm serve N --max-num-seqs 4",
        "cd /models && X=1 vllm serve M --max-num-seqs 64; vllm serve N --max-num-seqs 4",
        "vllm serve M --max-num-seqs 64 2>&1 > log &",
        "python -m vllm.entrypoints.openai.api_server --model M --max-num-seqs 64 || run --max-num-seqs 4",
        "vllm serve M --chat-template '<|im|>' --max-num-seqs 64",
        "vllm serve M --api-key a#b --max-num-seqs 64 # --max-num-seqs 4",
        "vllm serve M --served-model-name $(hostname -f | tr a b) --max-num-seqs 64",
        "vllm serve M --port $((8000 + (1 + 2))) --max-num-seqs 64",
        "vllm serve M --config <(cat a; cat b) --max-num-seqs 64 &>>log",
        "vllm serve M --api-key `cat key; true` --max-num-seqs 64",
        "vllm serve M > log --max-num-seqs 64 2> errors",
        "vllm serve M --max-num-seqs 64\nvllm serve N --max-num-seqs 4",
        "vllm serve M --max-num-seqs 64\n\npython -m other --max-num-seqs 4",
        "cd serve\nsleep 1; vllm serve M\n  --max-num-seqs 64",
        "vllm serve M \\\r\n  --max-num-seqs 64 \\\n",
        "(vllm serve M --max-num-seqs 64) || (vllm serve N --max-num-seqs 4)",
    ],
)
def test_a_command_ends_where_the_shell_ends_it(text: str) -> None:
    found = parse(text)
    assert (found.settings["max_num_seqs"], found.cost["llm"]) == (64, "M")
    again = parse(rewritten(text, {"max_num_seqs": "--max-num-seqs 65"}))
    assert (again.settings["max_num_seqs"], again.cost) == (65, found.cost)


SHELL_LINES = (
    "vllm serve M --max-num-\\\nseqs 4 'a \\\n b' \"c \\\n d\" a\\\\\n",
    'vllm serve M "\\$HOME \\` \\x \\\\ \\"" \\$HOME a\\ b \\\'',
    "vllm serve M # c \\\necho done",
    "vllm serve M > log x 2>&1 y >'l og' z <<<'a b' w &>> log",
    "(cd .\nvllm serve M a#b '#' \\# x'y'\"z\")\necho done",
    "A='b c' vllm serve M --a='{\"b\": [1, 2]}' --empty '' --e=\"\" & wait",
    "true && { vllm serve M a; } || vllm serve N b",
    "vllm serve M 3>log a3>log b",
    "true |\n vllm serve M x\n echo y",
    "vllm serve /m/my\\ dir\\  --x a\\\n# b\\ #c",
    "vllm serve M > \\\n log x 2>\\\nlog &\\\n& true |\\\n| vllm serve N",
    r"vllm serve M $'a\'b \n\t\x41\101\u00e9\xc3\xa9\e\cA\z\?\"' $'a\0b'c $'' x$'#'",
    "vllm serve M $'a\\\nb' 'a\\\nb' $\"a\\\nb \\$x \\'\" x$\"\"",
    """vllm serve M $(echo "a)b") "x $(echo "c d" ')') y" $(echo 'e(f' # g )\n) `echo "h)"` $(echo $( (echo i) ) ) z""",
    """vllm serve M ${HERE:-a b} "${HERE:-"}"}" ${HERE:-'}'}x ${HERE:-$(echo "}")} "${NONE:-a b}" $((16#f + (1)))""",
    "echo start vllm serve now\nvllm serve M x; printf 'vllm serve'",
    'sudo() { "$@"; }; echo --x | vllm serve --served-model-name echo; wait',
)
EXPANDED = {
    '$(echo "a)b")': "a)b",
    """$(echo "c d" ')')""": "c d )",
    "$(echo 'e(f' \n)": "e(f",
    '`echo "h)"`': "h)",
    "$(echo $( (echo i) ) )": "i",
    "${HERE:-a b}": "here",
    '${HERE:-"}"}': "here",
    "${HERE:-'}'}": "here",
    '${HERE:-$(echo "}")}': "here",
    "${NONE:-a b}": "a b",
    "$((16#f + (1)))": "16",
}
"""What bash puts in where a word says so."""


@pytest.mark.once
@pytest.mark.parametrize("line", SHELL_LINES)
def test_a_command_gets_the_words_that_a_shell_gives_it(line: str, tmp_path: Path) -> None:
    """Against bash itself: as it stands, and rewritten."""
    for text in (line, rewritten(line, {"watermark": "--watermark 0.1"})):
        found = tokens(text, "--from-command")
        mine = [word for at in server_in(found) if (word := found[at].text) is not None]
        for source, value in EXPANDED.items():
            mine = [word.replace(source, value) for word in mine]
        script = f"HERE=here; vllm() {{ printf '%s\\0' \"$@\" > argv; }}\n{text}"
        subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL, check=True, stdout=subprocess.DEVNULL
        )
        assert mine == (tmp_path / "argv").read_text().split("\0")[:-1]
    assert mine[-2:] == ["--watermark", "0.1"]


def test_the_server_is_the_word_behind_vllm() -> None:
    found = parse("docker run --name serve vllm/vllm-openai vllm serve Qwen/Qwen3-8B\u00a0--max-num-seqs 4")
    assert (found.cost["llm"], found.settings["max_num_seqs"]) == ("Qwen/Qwen3-8B", 4)


@pytest.mark.parametrize("flag", ["--max-num-seqs ", "--max-model-len 1.", "-tp ", "--block-size="])
def test_a_number_of_thousands_of_digits_is_none(flag: str) -> None:
    with pytest.raises(InputError, match="must be a whole number"):
        parse(f"vllm serve M {flag}{'9' * 5000}")


@pytest.mark.parametrize(
    "text", ["vllm serve 'M", 'vllm serve "M', "vllm serve M `x", "vllm serve M ${x", "vllm serve M $'x\\'"]
)
def test_what_no_shell_would_end_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read as a command line: no end of"):
        parse(text)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        *((f"-tp {value}", "must be a whole number from 1 on") for value in ("0", "-1", "two", "²", "1e9", "0x2")),
        ("--pipeline-parallel-size=2.5", "must be a whole number from 1 on"),
        ("--dtype zz", "must be one of auto, bfloat16, float16, half, float, float32"),
        ("--dtype bfloat61", "did you mean 'bfloat16'"),
    ],
)
def test_what_says_the_cost_is_checked_as_the_rest_is(flag: str, expected: str) -> None:
    with pytest.raises(InputError, match=re.escape(expected)):
        parse(f"vllm serve M {flag}")


def test_what_is_no_command_line_is_refused_in_one_line() -> None:
    for text, reason in (("vllm serve M >", "no file behind >"), (f"vllm serve {'$(' * 9999}", "nested too deeply")):
        with pytest.raises(InputError, match=f"cannot be read as a command line: {reason}"):
            parse(text)


@pytest.mark.parametrize("said", ["echo vllm serve now", "A=1 printf --done", "sudo echo --x vllm serve N"])
def test_a_command_that_only_says_something_is_not_the_servers(said: str) -> None:
    for server in ("nohup vllm serve M", "python -m vllm.entrypoints.openai.api_server --model M"):
        assert parse(f"{said}\n{server} --max-num-seqs 4").cost == {"llm": "M"}
    assert parse("echo vllm serve M").cost == {"llm": "M"}


def test_a_clients_command_is_refused() -> None:
    with pytest.raises(InputError, match="is a client's: must be the server's, vllm serve MODEL"):
        parse("vllm bench serve --request-rate 5")
