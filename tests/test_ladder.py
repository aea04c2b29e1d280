"""All engines on one load, and closed loops."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from batchlab import Summary, load, simulate
from batchlab.clients.closed import Closed
from batchlab.clients.request import Request
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def ladder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ladder", ROOT / "docs" / "ladder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_its_script_makes(ladder: ModuleType) -> None:
    assert (ROOT / "docs" / "ladder.md").read_text(encoding="utf-8") == ladder.page()


@pytest.mark.parametrize("place", range(11))
def test_every_engine_of_the_ladder_does_all_the_work_and_verifies(
    ladder: ModuleType, place: int, tmp_path: Path
) -> None:
    _, policy, settings = ladder.ENGINES[place]
    (run,) = load(ladder.SCENARIO, settings, [policy]).runs
    summary, path = Summary(), tmp_path / "t.jsonl"
    with path.open("w", encoding="utf-8") as file:
        simulate(run, [summary, TraceWriter(file, summary)])
    assert summary.result_counts() == {"completed": 400}
    totals = summary.totals()
    computed = totals["prefill_tokens"] + totals["decode_tokens"]
    assert computed == sum(r.prompt + r.output - 1 for r in run.requests) + totals["recomputed_tokens"]
    report = verify(path)
    assert report.ok, report.violations[:3]


def test_prefill_first_against_mixed_batches() -> None:
    """Measured: mean TTFT 4,472 and P99 ITL 30 ms prefill-first, 961 and 552 ms mixed. The same signs and order."""
    found = {}
    for run in load(ROOT / "examples" / "closed-loop.toml").runs:
        summary = Summary()
        simulate(run, [summary])
        document = summary.document(with_requests=False)
        ttft, itl = document["latency"]["ttft"]["mean"] / 1e6, document["latency"]["itl"]["p99"] / 1e6
        found[run.engine] = ttft, itl, document["throughput"]["request_rate"]
    first, mixed = found["vllm-v0"], found["vllm"]
    assert 2_000 < first[0] < 9_000 and 10 < first[1] < 60
    assert 450 < mixed[0] < 2_000 and 250 < mixed[1] < 1_100
    assert first[2] == pytest.approx(mixed[2], rel=0.02)


def test_a_closed_loop_sends_when_its_clients_are_free() -> None:
    loop = Closed([Request(str(n), 99, 1, 1, 1) for n in range(5)], clients=2, think_time=3)
    assert [(time, position, request.arrival) for time, position, request in loop.due(0)] == [(0, 0, 0), (0, 1, 0)]
    assert loop.next_arrival is None
    loop.ended(0, 10, completed=True)
    assert loop.next_arrival == 13 and loop.due(12) == []
    loop.ended(0, 13, completed=True)
    assert [(time, position) for time, position, _ in loop.due(16)] == [(13, 2), (16, 3)]
    loop.ended(0, 20, completed=True)
    loop.ended(0, 20, completed=True)
    assert [(time, position) for time, position, _ in loop.due(99)] == [(23, 4)], "the load has an end"
