"""What the recorder writes inside a real vLLM verifies, and our policy decides the same, step for step."""

import json
from pathlib import Path

import pytest
import serving
from driving import count, drive, holds

from batchlab.conform.recorded import run_recording
from batchlab.explain import explain
from batchlab.trace.verify import verify


def test_200_requests_with_preemptions_and_clients_that_leave(model: Path, trace: Path, tmp_path: Path) -> None:
    with serving.engine(model, trace) as engine:
        reasons = drive(engine, requests=220, seed=1, aborts=0.08)
    detail = holds(trace)
    numbers = dict(reversed(part.split()) for part in detail.split(", "))
    assert int(numbers["requests"]) == 220
    assert int(numbers["preemptions"]) >= 5
    assert int(numbers["cancelled"]) >= 10
    assert len(reasons) == 220 - int(numbers["cancelled"])  # vLLM's own count of those that ended by themselves
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    late = [d for line in lines for d in line.get("dropped", ()) if d["at"] > line["start"]]
    assert late, "no client left while a step was under way"
    assert any(line.get("discarded") for line in lines)
    found = explain(trace)
    assert sum(found.groups()["all"].times) == sum(
        (life.end or found.end.time) - life.request.arrival for life in found.state.lives.values()
    )
    _other_settings_decide_otherwise(lines, tmp_path / "other.jsonl")


def _other_settings_decide_otherwise(lines: list[dict], path: Path) -> None:
    """The comparison can fail: the same arrivals under other rules part from the recording, at an iteration."""
    header = lines[0]
    for changed in (
        {"settings": header["settings"] | {"watermark": 0.3}},
        {"settings": header["settings"] | {"long_prefill_token_threshold": 16}},
        {"limits": header["limits"] | {"max_num_seqs": 4}},
        {"limits": header["limits"] | {"num_gpu_blocks": 60}},
    ):
        path.write_text("".join(json.dumps(line) + "\n" for line in [header | changed, *lines[1:]]))
        _, difference = run_recording(path)
        assert difference is not None and difference.place.startswith("iteration "), changed


def test_prefix_caching_is_replayed_by_the_names_of_blocks(model: Path, trace: Path) -> None:
    with serving.engine(model, trace, enable_prefix_caching=True) as engine:
        drive(engine, requests=100, seed=2, shared=True, aborts=0.05)
    assert "preemptions" in holds(trace)
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    found = sum(tokens for line in lines for _, tokens in line.get("cached", ()))
    assert found >= 32 * 20, "the cache was hardly used"
    assert count(trace, '"filled"') > 0
    unnamed = [{k: v for k, v in line.items() if k != "filled"} for line in lines]
    for line in unnamed:
        if "blocks" in line:
            line["blocks"] = [f"{line['id']} {place}" for place in range(len(line["blocks"]))]
    trace.write_text("".join(json.dumps(line) + "\n" for line in unnamed))
    _, difference = run_recording(trace)
    assert difference is not None, "with blocks that are equal to nobody's nothing is found in the cache"


def test_priorities_and_other_settings(model: Path, trace: Path) -> None:
    with serving.engine(
        model, trace, scheduling_policy="priority", long_prefill_token_threshold=48, watermark=0.05
    ) as engine:
        drive(engine, requests=90, seed=3, aborts=0.05, ranks=4, longest=100)
    holds(trace)
    assert count(trace, '"place":"key"') > 0, "nobody was preempted"


def test_a_recording_that_is_there_is_never_overwritten(model: Path, trace: Path) -> None:
    trace.write_text("mine\n")
    with serving.engine(model, trace) as engine:
        drive(engine, requests=3, seed=4)
    assert trace.read_text() == "mine\n"
    assert verify(trace.with_name("trace.1.jsonl")).requests == 3


def test_without_a_file_the_engine_does_not_start(model: Path) -> None:
    with pytest.raises(ValueError, match="BATCHLAB_TRACE"), serving.engine(model):
        pass
