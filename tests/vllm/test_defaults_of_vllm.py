"""What vLLM itself sets where a command does not say it."""

import pytest
from vllm.config import CacheConfig
from vllm.engine import arg_utils
from vllm.usage.usage_lib import UsageContext

from batchlab.vllm_command import UTILIZATION, batch_defaults


class Platform:
    """A GPU as vLLM asks about it."""

    def __init__(self, name: str, gib: float) -> None:
        self._name, self._gib = name, gib

    def get_device_total_memory(self) -> float:
        return self._gib * 2**30

    def get_device_name(self) -> str:
        return self._name

    def is_tpu(self) -> bool:
        return False

    def is_cpu(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [
        ("a100-40", 40),
        ("a100-80-sxm", 80),
        ("h100-sxm", 80),
        ("h200", 141),
        ("b200", 180),
        ("mi300x", 192),
        ("l40s", 45),
    ],
)
def test_the_batch_by_gpu(gpu: str, gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arg_utils, "current_platform", Platform(f"NVIDIA {gpu.upper()}", gib))
    tokens, seqs = arg_utils.EngineArgs.get_batch_defaults(1)
    ours = batch_defaults(gpu, gib, {})
    server = UsageContext.OPENAI_API_SERVER
    assert ours == {"max_num_seqs": seqs[server], "max_num_batched_tokens": tokens[server]}


def test_the_share_of_memory() -> None:
    assert CacheConfig().gpu_memory_utilization == UTILIZATION
