"""Policies that promise `coasts`: the same run, whether or not the loop asks them again."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from batchlab import Limits, Request, Run, Summary, policies, simulate
from batchlab.costs.linear import Linear

NS = Linear("ns", per_iteration=1000, prefill_token=10, decode_token=3, context_token=1)
COASTING = ["chunked", "continuous", "decode-first", "sarathi", "vllm-v0"]


def any_run(name: str, seed: int) -> Run:
    rng = Random(f"coasting {name} {seed}")
    seats = rng.choice([1, 2, 4, 9])
    budget = seats + rng.choice([0, 3, 20, 200])
    limits: dict[str, Any] = {"max_num_seqs": seats, "max_num_batched_tokens": budget}
    settings: dict[str, Any] = {}
    if name in ("chunked", "decode-first"):
        settings["prefill_chunk"] = rng.choice([1, 5, 100])
    if name == "decode-first":
        settings["arrivals_first"] = rng.random() < 0.5
        settings["preemption_mode"] = rng.choice(["keep", "recompute"])
    if name == "vllm-v0":
        settings["preemption_mode"] = rng.choice(["recompute", "swap"])
        settings["watermark"] = rng.choice([0.0, 0.1])
        limits |= {"num_gpu_blocks": rng.choice([6, 12, 40, None]), "block_size": 4}
    if name == "chunked" and rng.random() < 0.3:
        limits["max_num_batched_tokens"] = rng.randint(1, seats)  # decodes wait for one another
    most = limits["max_num_batched_tokens"] if name == "continuous" else 30
    now, requests = 0, []
    for n in range(rng.randint(1, 25)):
        now += rng.choice([0, 0, 1, 900, 5000, 60_000])
        output = rng.randint(1, 40)
        prompt, longer = rng.randint(1, max(1, min(30, most))), rng.choice([0, 0, 7])
        requests.append(Request(f"r{n}", now, prompt, output, output + longer, rng.randint(0, 2)))
    policy = policies.find(name)(**settings)
    return Run(policy, Limits(**limits), NS, requests, inline=False, engine=name)


def counted(plan: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    """The method, which also says that it was called."""

    def counting(self: Any, view: Any, batch: Any) -> Any:
        calls.append(1)
        return plan(self, view, batch)

    return counting


@pytest.mark.parametrize("name", COASTING)
def test_nothing_changes_where_the_policy_is_not_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preempted = asked = iterations = 0
    for seed in range(150):
        quick, plain = Summary(), Summary()
        run = any_run(name, seed)
        assert policies.coasts(run.policy)
        policy = type(run.policy)
        with monkeypatch.context() as patched:
            patched.setattr(policy, "plan", counted(policy.plan, calls := []))
            simulate(run, [quick])
        simulate(any_run(name, seed), [plain, lambda event: None])
        assert quick.document() == plain.document(), f"seed {seed}"
        preempted += quick.tally.preemptions
        asked += len(calls)
        iterations += plain.document()["iterations"]
    assert asked < iterations * 0.8  # it has coasted
    assert preempted > 0 or name not in ("decode-first", "vllm-v0")
