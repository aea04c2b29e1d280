"""Inside a real vLLM: a scheduler that records, and one that also decides by a policy written for the simulator.

    BATCHLAB_TRACE=trace.jsonl vllm serve MODEL --scheduler-cls batchlab.vllm.RecordingScheduler --no-async-scheduling
    BATCHLAB_POLICY=mine.py:Mine vllm serve MODEL --scheduler-cls batchlab.vllm.PolicyScheduler --no-async-scheduling

docs/real-vllm.md tells how. Needs vLLM 0.32 in the same environment; nothing else of batchlab imports this package.
"""

from importlib.util import find_spec

if find_spec("vllm") is None:
    raise ImportError("batchlab.vllm runs inside vLLM, which is not installed here: pip install 'batchlab[vllm]'")

from batchlab.vllm.policy import PolicyScheduler
from batchlab.vllm.recorder import RecordingScheduler

__all__ = ["PolicyScheduler", "RecordingScheduler"]
