"""A real vLLM for tests: a tiny model made here, the engine in this process, or the server over HTTP on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDING = "batchlab.vllm.RecordingScheduler"
POLICY = "batchlab.vllm.PolicyScheduler"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # For an engine made here: in this process. A server's has a process of its own, whatever this says.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
SETTINGS: dict[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "block_size": 32,
    "num_gpu_blocks_override": 41,
    "enable_prefix_caching": False,
}
"""Of the engine, where a test does not say otherwise: by vLLM's own names. Small enough that requests get in each
other's way."""
WORDS = 2000
SOURCES = str(Path(__file__).parents[2] / "src")


def make_model(folder: Path, hidden: int = 64, layers: int = 2) -> Path:
    """A Llama without weights of its own (vLLM makes random ones) whose tokenizer knows the words w3, w4, ... w1999."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 32,
        "max_position_embeddings": 4096,
        "vocab_size": WORDS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", model_max_length=4096
    )
    fast.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    fast.save_pretrained(folder)
    return folder


@contextmanager
def environment(**more: str) -> Iterator[None]:
    """The environment variables that vLLM and our schedulers read, for a while."""
    wanted = {**ENVIRONMENT, **more}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def engine(
    model: Path,
    trace: Path | None = None,
    scheduler: str | None = RECORDING,
    policy: str | None = None,
    **settings: Any,
) -> Iterator[Any]:
    """An LLMEngine in this process, driven by add_request and step. policy: what BATCHLAB_POLICY is to say."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    more = {name: str(value) for name, value in (("BATCHLAB_TRACE", trace), ("BATCHLAB_POLICY", policy)) if value}
    arguments = {**SETTINGS, **settings}
    with environment(**more):
        made = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(model),
                load_format="dummy",
                enforce_eager=True,
                distributed_executor_backend="uni",
                scheduler_cls=scheduler,
                disable_log_stats=True,
                **arguments,
            )
        )
        try:
            yield made
        finally:
            made.engine_core.shutdown()


@dataclass
class Server:
    """A running server. url: where it is; trace: the recording, if there is one; pid: the engine's process."""

    url: str
    port: int
    pid: int
    model: str
    trace: Path | None
    log: Path
    process: Any = field(repr=False)

    def kill(self) -> None:
        """As an out-of-memory killer would."""
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(timeout=20)

    def stop(self, patience: float = 20) -> None:
        """As Ctrl-C would; what is left after some seconds is killed."""
        if self.process.poll() is None:
            os.killpg(self.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=patience)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its group, even where the leader is gone
        self.process.wait(timeout=20)


@contextmanager
def server(
    model: Path,
    trace: Path | None = None,
    scheduler: str | None = RECORDING,
    policy: str | None = None,
    ready_within: float = 120,
    log: Path | None = None,
    cores: set[int] | None = None,
    **settings: Any,
) -> Iterator[Server]:
    """`vllm serve` on a free port of 127.0.0.1, in a process group of its own that is gone at the end.

    settings: flags of `vllm serve` with underscores; True and False are switches. cores: CPUs that it may use.
    """
    port = _free_port()
    log = log or (model.parent / f"server-{port}.log")
    arguments = {**SETTINGS, **settings, "host": "127.0.0.1", "port": port, "load_format": "dummy"}
    arguments |= {"enforce_eager": True, "distributed_executor_backend": "uni", "served_model_name": "tiny"}
    if scheduler is not None:
        arguments["scheduler_cls"] = scheduler
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *_flags(arguments)]
    more = {name: str(value) for name, value in (("BATCHLAB_TRACE", trace), ("BATCHLAB_POLICY", policy)) if value}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": SOURCES, **more},
            start_new_session=True,
            preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
        )
    running = Server(f"http://127.0.0.1:{port}", port, process.pid, "tiny", trace, log, process)
    try:
        _await_ready(running, ready_within)
        yield running
    finally:
        running.stop()


def _flags(arguments: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_ready(running: Server, within: float) -> None:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if running.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{running.url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    tail = running.log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"the server was not ready within {within} s:\n{tail}")
