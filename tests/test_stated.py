"""What a class of one's own states is what counts, or it is refused: nothing of it is ignored in silence."""

from pathlib import Path
from typing import Any

import pytest

from batchlab import policies
from batchlab.errors import InputError
from batchlab.events import Iteration
from batchlab.policies.stated import check_stated
from batchlab.scenario import build
from batchlab.simulation import simulate

HEAD = """
from batchlab import Policy
from dataclasses import dataclass
from batchlab.policies.chunked import Chunked
from batchlab.policies.victims import RULES
from batchlab.policies.vllm import Vllm

def shortest(seq):
    return seq.prompt_tokens

"""


def admitted(tmp_path: Path, text: str) -> list[str]:
    """In which order four prompts of 5, 3, 4 and 1 tokens that come together get the only seat."""
    (tmp_path / "mine.py").write_text(HEAD + text)
    requests = [{"id": str(p), "arrival": 0, "prompt": p, "output": 2} for p in (5, 3, 4, 1)]
    engine = {"policy": f"{tmp_path / 'mine.py'}:Mine", "max_num_seqs": 1, "max_num_batched_tokens": 8}
    run = build({"engine": engine, "cost": {"model": "unit"}, "workload": {"requests": requests}}).runs[0]
    found: list[str] = []
    simulate(run, [lambda event: found.extend(event.admitted) if isinstance(event, Iteration) else None])
    return found


IN_INIT = "    def __init__(self):\n        super().__init__()\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "    def queue_key(self, seq):\n        return seq.prompt_tokens",
            "queue_key: the constructor of Vllm replaces",
        ),
        ("    queue_key = staticmethod(shortest)", "after super().__init__(): self.queue_key = ..."),
        ("    queue_key = 'abc'", "queue_key: the constructor of Vllm replaces"),
        ("    watermark = 0.5", "watermark: the constructor of Vllm replaces what the class states: hand it on"),
        ("    victim = 'priority'", "hand it on in __init__: super().__init__(victim=...)"),
        ("    def victim_rule(self, running):\n        return running[0]", "super().__init__(victim=...)"),
        ("    def __init__(self):\n        self.queue_key = shortest", "__init__ has to call super().__init__() first"),
        (
            "    def __init__(self):\n        pass\n    def check(self, limits, requests):\n        pass\n"
            "    def plan(self, view, batch):\n        batch.decode_all()",
            "__init__ has to call super().__init__() first",
        ),
        (
            "    steps_in_flight = 2",
            "replaces what the class states: set it in __init__, after super().__init__(): self.steps_in_flight = ...",
        ),
        *(
            (
                IN_INIT + f"        self.{key} = {value!r}",
                f"{key}: {value!r}: is set after super().__init__(), where it no longer counts: super().__init__({key}",
            )
            for key, value in {
                "watermark": 0.3,
                "long_prefill_token_threshold": 4,
                "long_prefill_token_threshold_adaptive": True,
                "enable_chunked_prefill": False,
                "scheduling_policy": "priority",
                "scheduler_reserve_full_isl": False,
                "async_scheduling": True,
                "preemption_mode": "keep",
            }.items()
        ),
        (
            IN_INIT + "        self.victim = 'least-computed'",
            "victim: 'least-computed': is set after super().__init__(),",
        ),
        (IN_INIT + "        self.queue_key = 'abc'", "queue_key: 'abc': must be a function of a sequence"),
        *(
            (body, "victim: must be the name of a rule: last-admitted, priority, most-remaining, least-computed, as in")
            for body in (
                "    def victim(self, view):\n        return None",
                "    @staticmethod\n    def victim(view):\n        return None",
                "    victim = 5",
                IN_INIT + "        self.victim = lambda running: running[0]",
                IN_INIT + "        self.victim = ['priority']",
            )
        ),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        admitted(tmp_path, f"class Mine(Vllm):\n{body}\n")
    assert said in str(refused.value) and str(refused.value).startswith(f"{tmp_path}/mine.py:Mine: ")


@pytest.mark.parametrize(
    "body",
    [
        "(Vllm):\n    queue_key = None\n" + IN_INIT + "        self.queue_key = shortest\n",
        "(Vllm):\n" + IN_INIT + "        self._watermark, self.watermark, self.queue_key = 0.3, 0.0, shortest\n",
        "(Vllm):\n    by_length = staticmethod(shortest)\n" + IN_INIT + "        self.queue_key = self.by_length\n",
        "(Vllm):\n    watermark = 0.25\n    def __init__(self):\n        super().__init__(watermark=self.watermark)\n"
        "        self.queue_key = shortest\n",
        "(Vllm):\n    def queue_key(self, seq):\n        return seq.prompt_tokens\n    def __init__(self):\n"
        "        key = self.queue_key\n        super().__init__()\n        self.queue_key = key\n",
        "(Vllm):\n    def queue_key(self, seq):\n        return seq.prompt_tokens\n    def __init__(self):\n"
        "        key = self.queue_key\n        super().__init__()\n        self.queue_key = lambda seq: key(seq)\n",
        "(Vllm):\n    watermark = 0.1\n    def __init__(self, watermark: float = 0.2):\n"
        "        super().__init__(watermark=watermark)\n        self.queue_key = shortest\n",
        "(Vllm):\n    @property\n    def queue_key(self):\n        return shortest\n    @queue_key.setter\n"
        "    def queue_key(self, value):\n        pass\n",
        "(Policy):\n    def __init__(self):\n        self.victim, self._victim = 'fewest', RULES['least-computed']\n"
        "    def queue_key(self, seq):\n        return seq.prompt_tokens\n    def plan(self, view, batch):\n"
        "        batch.decode_all()\n        batch.admit_waiting()\n        batch.prefill_all()\n",
        "(Chunked):\n    def __init__(self):\n        self.queue_key = shortest\n"
        "    def check(self, limits, requests):\n        pass\n    def plan(self, view, batch):\n"
        "        batch.decode_all()\n        batch.admit_waiting()\n        batch.prefill_all()\n",
        "(Vllm):\n    victim_rule = 'fewest computed'\n    def __init__(self):\n"
        "        super().__init__(victim='least-computed')\n        self.queue_key = shortest\n",
        "(Vllm):\n    watermark: float = 0.1\n    def __post_init__(self):\n"
        "        super().__init__(watermark=0.3)\n        self.queue_key = shortest\nMine = dataclass(Mine)\n",
        "(Policy):\n    def queue_key(self, seq):\n        return seq.prompt_tokens\n    def plan(self, view, batch):\n"
        "        batch.decode_all()\n        batch.admit_waiting()\n        batch.prefill_all()\n",
    ],
)
def test_what_counts_is_taken_and_decides(tmp_path: Path, body: str) -> None:
    assert admitted(tmp_path, f"class Mine{body}") == ["1", "3", "4", "5"]


def test_what_no_constructor_sets_may_be_stated(tmp_path: Path) -> None:
    text = "class Mine(Vllm):\n    coasts = False\n    rules = 'mine'\n    most = 3\n"
    assert admitted(tmp_path, text) == ["5", "3", "4", "1"]


def test_every_built_in_policy_may_be_derived_from() -> None:
    """That its constructor has been called is told by its attributes: each setting is one."""
    needed = {"prefill_chunk": 4, "max_bs": 4, "n_workers": 2, "target_itl": 9, "max_batch_size": 4}
    for name in policies.names():
        found = policies.find(name)
        mine: Any = type("Mine", (found,), {"__module__": "mine"})
        made = mine(**{key: value for key, value in needed.items() if key in policies.parameters(found)})
        assert all(hasattr(made, key) for key in policies.parameters(found)), name
        check_stated(made, name)


@pytest.mark.parametrize("victim", ["lambda running: running[0]", "'youngest'", "['priority']"])
def test_a_rule_that_there_is_not_cannot_be_handed_on(tmp_path: Path, victim: str) -> None:
    with pytest.raises(InputError, match=r"victim: .*must be the name of a rule: last-admitted, priority, most-rem"):
        admitted(tmp_path, f"class Mine(Vllm):\n    def __init__(self):\n        super().__init__(victim={victim})\n")
