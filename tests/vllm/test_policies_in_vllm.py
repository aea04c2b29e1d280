"""A policy written for the simulator decides inside a real vLLM what it decides in the simulator."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import serving
from driving import count, drive, holds
from vllm.v1.core.sched.request_queue import FCFSRequestQueue

from batchlab.conform.recorded import run_recording
from batchlab.errors import BatchlabError, InputError
from batchlab.trace.verify import verify
from batchlab.vllm import lines
from batchlab.vllm.carry import carry
from batchlab.vllm.file import TraceFile
from batchlab.vllm.queue import KeyQueue

EXAMPLE = Path(__file__).parents[2] / "examples" / "shortest_first.py"
ENGINE = {
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "enable_chunked_prefill": True,
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
    "scheduling_policy": "fcfs",
    "async_scheduling": False,
}
LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "num_gpu_blocks": 40, "block_size": 32}


def written(folder: Path, classes: str) -> str:
    """A file with these classes, which derive from Vllm: its path."""
    path = folder / "mine.py"
    path.write_text(f"from batchlab.policies.vllm import Vllm\n\n\n{classes}")
    return str(path)


def header_of(trace: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(trace.read_text().partition("\n")[0])
    return found


def change_header(trace: Path, **changes: Any) -> None:
    """Have the recording say of itself that something else was set."""
    _, rest = trace.read_text().split("\n", 1)
    trace.write_text(json.dumps(header_of(trace) | changes) + "\n" + rest)


def test_shortest_prompt_first_with_aging(model: Path, trace: Path) -> None:
    policy = f"{EXAMPLE}:ShortestFirst tokens_per_second=200"
    with serving.engine(model, trace, serving.POLICY, policy) as engine:
        drive(engine, requests=100, seed=5, aborts=0.05)
    holds(trace)
    header = header_of(trace)
    assert header["settings"] == {"tokens_per_second": 200}
    assert header["rules"] == "vLLM 0.32.0, shortest prompt first with linear aging, 1"
    change_header(trace, engine="vllm", settings={})
    _, difference = run_recording(trace)
    assert difference is not None, "first come, first served would have done the same: the policy decided nothing"


@pytest.mark.parametrize("rule", ["least-computed", "most-remaining"])
def test_victims(model: Path, trace: Path, rule: str) -> None:
    by_priority = {"scheduling_policy": "priority"} if rule == "most-remaining" else {}
    with serving.engine(model, trace, serving.POLICY, f"vllm victim={rule}", **by_priority) as engine:
        drive(engine, requests=60, seed=6, longest=120, ranks=3 if by_priority else 1)
    holds(trace)
    assert count(trace, '"mode":"recompute"') >= 5
    header = header_of(trace)
    assert header["rules"] == "vLLM 0.32.0"
    change_header(trace, settings=header["settings"] | {"victim": None})
    _, difference = run_recording(trace)
    assert difference is not None, "vLLM's own rule would have chosen the same victims"


def test_a_door(model: Path, trace: Path, tmp_path: Path) -> None:
    mine = written(
        tmp_path,
        "class Door(Vllm):\n"
        "    def __init__(self, most: int = 4):\n"
        "        super().__init__()\n"
        "        self.most = most\n\n"
        "    def on_arrival(self, seq, view, batch):\n"
        "        busy = sum(other.remaining_work for other in view.running) > 900\n"
        "        if len(view.waiting) >= self.most or busy:\n"
        "            batch.reject(seq, 'busy')\n"
        "        else:\n"
        "            super().on_arrival(seq, view, batch)\n",
    )
    with serving.engine(model, trace, serving.POLICY, f"{mine}:Door most=3") as engine:
        reasons = drive(engine, requests=60, seed=8)
        refused = count(trace, '"reason":"busy"')
        assert refused >= 5
        assert sum(reason == "error" for reason in reasons.values()) == refused
        drive(engine, requests=40, seed=9, aborts=0.15)
    refused = count(trace, '"reason":"busy"')
    assert f"{refused} rejected" in holds(trace)


def test_a_door_that_leaves_a_newcomer_refuses_it(model: Path, trace: Path, tmp_path: Path) -> None:
    """One who is left where it was, and one who is in the queue already when the door fails."""
    mine = written(
        tmp_path,
        "class Door(Vllm):\n"
        "    def on_arrival(self, seq, view, batch):\n"
        "        if seq.prompt_tokens % 4:\n"
        "            super().on_arrival(seq, view, batch)\n"
        "            assert seq.prompt_tokens % 5\n",
    )
    with serving.engine(model, trace, serving.POLICY, f"{mine}:Door") as engine:
        reasons = drive(engine, requests=40, seed=12)
    refused = count(trace, ": on_arrival left the newcomer at the door: enqueue or reject it")
    failed = count(trace, ":Door: AssertionError: ")
    assert refused >= 3 and failed >= 3
    assert sum(reason == "error" for reason in reasons.values()) == refused + failed
    assert f"{refused + failed} rejected" in holds(trace)


def test_an_error_in_a_policy_refuses_the_request_and_the_engine_goes_on(
    model: Path, trace: Path, tmp_path: Path
) -> None:
    mine = written(
        tmp_path,
        "class Urgent(Vllm):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.queue_key = lambda seq: 1000 // (seq.prompt_tokens % 3)\n",
    )
    with serving.engine(model, trace, serving.POLICY, f"{mine}:Urgent") as engine:
        reasons = drive(engine, requests=30, seed=10)
    report = verify(trace)
    assert report.ok, report.violations[0]
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    thirds = {line["id"] for line in lines if line["type"] == "request" and line["prompt"] % 3 == 0}
    refused = [entry for line in lines for entry in line.get("rejected", ())]
    assert {entry["id"] for entry in refused} == thirds and thirds
    assert refused[0]["reason"].endswith(":Urgent: ZeroDivisionError: integer division or modulo by zero")
    assert sum(reason == "error" for reason in reasons.values()) == len(thirds) < len(reasons) == 30
    assert f"{len(thirds)} rejected" in holds(trace)
    for line in lines:
        for entry in line.get("rejected", ()):
            entry["reason"] = "busy"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BatchlabError, match=r"Urgent: iteration .*ZeroDivisionError"):
        run_recording(trace)


def test_keys_that_do_not_compare_refuse_the_request_and_the_engine_goes_on(
    model: Path, trace: Path, tmp_path: Path
) -> None:
    """None and NaN never have a place; a text or a number has one where no one of the other kind is there."""
    mine = written(
        tmp_path,
        "class Edf(Vllm):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.queue_key = lambda seq: (None, float('nan'), seq.arrival, 'text')[seq.prompt_tokens % 4]\n",
    )
    with serving.engine(model, trace, serving.POLICY, f"{mine}:Edf") as engine:
        reasons = drive(engine, requests=60, seed=11, aborts=0.05)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    never = {line["id"] for line in lines if line["type"] == "request" and line["prompt"] % 4 < 2}
    refused = {entry["id"] for line in lines for entry in line.get("rejected", ())}
    assert never <= refused and 20 < len(refused) < 60
    assert sum(reason in ("stop", "length") for reason in reasons.values()) >= 5
    assert f"{len(refused)} rejected" in holds(trace)


def test_a_victim_rule_that_fails_leaves_the_choice_to_vllm(model: Path, trace: Path, tmp_path: Path) -> None:
    mine = written(
        tmp_path,
        "class Picky(Vllm):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self._victim = lambda running: running[len(running) + 1]\n",
    )
    with serving.engine(model, trace, serving.POLICY, f"{mine}:Picky") as engine:
        reasons = drive(engine, requests=60, seed=6, longest=120)
    assert len(reasons) == 60 and count(trace, '"mode":"recompute"') >= 5
    holds(trace)
    change_header(trace, engine="vllm", settings={})
    holds(trace)


def test_a_queue_takes_out_without_comparing() -> None:
    """Keys that have stopped comparing, or never had an order: who leaves is the one that was named."""
    keys = [float("nan"), 3.0, float("nan"), 1.0, 2.0]
    queue = KeyQueue(lambda request: (1, keys[request.position % 5], request.position), in_front=True)
    requests = [Waiting(position) for position in range(5)]
    for request in requests:
        queue.add_request(request)
    keys[:] = [None, "a", (), object(), {}]
    queue.remove_requests([requests[2], requests[0], Waiting(7)])
    queue.remove_request(requests[1])
    assert sorted(request.position for request in queue) == [3, 4] and len(queue) == 2
    queue.remove_requests(requests)
    assert not queue and list(queue) == []


@pytest.mark.parametrize("place", ["", "gone/trace.jsonl", "file/trace.jsonl"])
def test_a_trace_that_cannot_be_written_is_said_with_the_variable(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / place) if place else "/proc/nobody.jsonl"
    with pytest.raises(InputError, match=r"^BATCHLAB_TRACE: .*: cannot be written: .*: name a new file in a folder"):
        TraceFile(path)


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^BATCHLAB_TRACE: .*: is a folder: name a new file in it"):
        TraceFile(str(tmp_path))
    assert list(tmp_path.parent.glob(f"{tmp_path.name}.*")) == []


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (500, 500_000_000),
        (0.5, 500_000),
        (None, None),
        (0, None),
        (-5, None),
        ("soon", None),
        (1e300, None),
        (1e-9, None),
    ],
)
def test_a_deadline_is_taken_or_told_to_be_none(
    given: Any, known: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    extra = None if given is None else {"deadline_ms": given}
    request = SimpleNamespace(
        request_id="r",
        num_prompt_tokens=3,
        max_tokens=2,
        priority=0,
        arrival_time=1.0,
        sampling_params=SimpleNamespace(extra_args=extra),
    )
    with caplog.at_level(logging.WARNING, logger="vllm.batchlab"):
        logging.getLogger("vllm").addHandler(caplog.handler)
        try:
            line = lines.request_line(request, 5, 0, False)
        finally:
            logging.getLogger("vllm").removeHandler(caplog.handler)
    assert line.get("deadline") == known
    told = (
        [] if given is None or known is not None else [f"batchlab: request r has no deadline: deadline_ms is {given!r}"]
    )
    assert sorted({record.getMessage() for record in caplog.records}) == told


def test_half_of_a_surrogate_pair_in_an_id_does_not_end_the_engine(tmp_path: Path) -> None:
    file = TraceFile(str(tmp_path / "trace.jsonl"))
    file.write([{"id": "\ud800", "n": 1}, {"id": "é"}])
    file.close()
    assert [json.loads(line)["id"] for line in (tmp_path / "trace.jsonl").read_text().splitlines()] == ["\ud800", "é"]


def test_what_plans_its_own_batch_is_refused_with_the_reason(tmp_path: Path) -> None:
    mine = written(
        tmp_path,
        "class Plans(Vllm):\n"
        "    def plan(self, view, batch):\n"
        "        return super().plan(view, batch)\n\n\n"
        "class Other(Vllm):\n"
        "    def __init__(self):\n"
        "        super().__init__(watermark=0.5)\n\n\n"
        "class Later(Vllm):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.plan = lambda view, batch: None\n\n\n"
        "class Holds(Vllm):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.holds = 'max'\n\n\n"
        "class Deep(Vllm):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.steps_in_flight = 2\n\n\n"
        "class Key(Vllm):\n"
        "    def queue_key(self, seq):\n"
        "        return seq.prompt_tokens\n\n\n"
        "class Bare(Vllm):\n"
        "    def __init__(self):\n"
        "        self.queue_key = None\n",
    )
    for text, said in (
        (f"{mine}:Plans", "plan: plans its own batch|'plan': plans its own batch"),
        ("sarathi", "plans its own batch"),
        (f"{EXAMPLE.parent}/shortest_prompt_first.py:ShortestPromptFirst", "plans its own batch"),
        (f"{mine}:Other", "watermark: 0.5: the policy sets what vLLM has as 0.0"),
        (f"{mine}:Later", "'plan': plans its own batch"),
        (f"{mine}:Holds", "holds: 'max': cannot be carried over"),
        (f"{mine}:Deep", "steps_in_flight: 2: cannot be carried over"),
        (f"{mine}:Key", "queue_key: the constructor of Vllm replaces what the class states"),
        (f"{mine}:Bare", "its __init__ has to call super"),
        ("vllm 'victim=", '"vllm \'victim=": cannot be read as a shell reads it: No closing quotation'),
        ("vllm victim", "'victim': must be KEY=VALUE, such as victim=least-computed"),
        ("nobody", "^BATCHLAB_POLICY: 'nobody': one of chunked, "),
        ("vllm watermark=0.5", "give --watermark to vllm serve"),
        ("vllm preemption_mode=keep", "vLLM can only recompute"),
        ("vllm victim=youngest", "victim: 'youngest': must be|victim"),
        ("vllm victm=priority", "did you mean 'victim'"),
        ("vlm", "did you mean 'vllm'"),
        ("nowhere.py:Mine", "no such file"),
        ("", "must name a policy"),
        (None, "must name a policy"),
    ):
        with pytest.raises(InputError, match=said) as refused:
            carry(text, ENGINE, LIMITS)
        assert str(refused.value).startswith("BATCHLAB_POLICY: ") and str(refused.value).count("BATCHLAB") == 1
    assert carry("vllm victim=least-computed", ENGINE, LIMITS).settings["victim"] == "least-computed"


def test_a_setting_of_vllms_that_a_policy_does_not_take_is_named(tmp_path: Path) -> None:
    """It has set nothing itself; with the parameter it takes what vLLM has."""
    mine = written(
        tmp_path,
        "class Takes(Vllm):\n"
        "    def __init__(self, scheduling_policy: str = 'fcfs'):\n"
        "        super().__init__(scheduling_policy=scheduling_policy)\n",
    )
    by_priority = ENGINE | {"scheduling_policy": "priority"}
    said = "scheduling_policy: 'priority': ShortestFirst cannot take what vLLM has here: give its __init__ a parameter"
    with pytest.raises(InputError, match=f"^BATCHLAB_POLICY: {said} scheduling_policy, and hand it to super"):
        carry(f"{EXAMPLE}:ShortestFirst", by_priority, LIMITS)
    with pytest.raises(InputError, match="long_prefill_token_threshold: 64: ShortestFirst cannot take"):
        carry(f"{EXAMPLE}:ShortestFirst", ENGINE | {"long_prefill_token_threshold": 64}, LIMITS)
    assert carry(f"{mine}:Takes", by_priority, LIMITS).settings == {"scheduling_policy": "priority"}


class Waiting:
    """As much of a request as a queue looks at."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.num_preemptions = 0

    def __repr__(self) -> str:
        return f"r{self.position}"


def test_without_a_key_the_queue_is_vllms_own() -> None:
    """With equal keys, in any order of calls, it answers as vLLM's first come, first served does."""
    import random

    rng = random.Random(7)
    mine = KeyQueue(lambda request: (1, 0, request.position), in_front=True)
    theirs = FCFSRequestQueue()
    out: list[Waiting] = []
    for position in range(300):
        request = Waiting(position)
        mine.add_request(request)
        theirs.add_request(request)
        for _ in range(rng.randrange(3)):
            if theirs and rng.random() < 0.6:
                assert mine.peek_request() is theirs.peek_request()
                out.append(theirs.pop_request())
                assert mine.pop_request() is out[-1]
            if out and rng.random() < 0.4:
                back = out.pop(rng.randrange(len(out)))
                back.num_preemptions += 1
                mine.prepend_request(back)
                theirs.prepend_request(back)
            if theirs and rng.random() < 0.2:
                gone = rng.choice(list(theirs))
                mine.remove_requests([gone])
                theirs.remove_requests([gone])
        assert list(mine) == list(theirs) and len(mine) == len(theirs) and bool(mine) == bool(theirs)
