"""The public names, and the whole way through them."""

import inspect
from pathlib import Path

import batchlab

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_sorted_and_described() -> None:
    assert batchlab.__all__ == sorted(batchlab.__all__)
    for name in batchlab.__all__:
        assert inspect.getdoc(getattr(batchlab, name)), name


def test_everything_a_command_does_can_be_done_from_python(tmp_path: Path) -> None:
    (run,) = batchlab.load(ROOT / "examples" / "priority-preemption.toml").runs
    summary, trace = batchlab.Summary(), tmp_path / "trace.jsonl"
    with trace.open("w", encoding="utf-8") as file:
        end = batchlab.simulate(run, [summary, batchlab.TraceWriter(file, summary)])
    assert end.termination == "all_terminal"
    assert batchlab.verify(trace).ok
    cases = ROOT.parent / "shared" / "worked-examples"
    assert batchlab.conform_case(cases / "decode-first-baseline.json").difference is None
