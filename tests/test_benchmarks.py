"""The benchmarks run, and their check fails when it should. No time is asserted."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("report", "cases", "page"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import report

    return report


def test_the_smallest_case_is_measured_three_times(report: ModuleType) -> None:
    found = report.measured("half", 1, share=0.005)
    assert (found["requests"], found["mode"]) == (100, "quick")
    assert found["iterations"] > 100 and len(found["rates"]) == 3
    assert found["ratio"] == found["rates"][0] / found["rates"][2] > 0
    assert found["ratio_compiled"] == found["rates"][0] / found["rates"][1] > 0


def test_the_check_names_what_is_more_than_a_fifth_slower(report: ModuleType) -> None:
    floors = {"a": 100.0, "b": 100.0, "c": 100.0}
    assert report.too_slow({"a": 80.0, "b": 100.0, "c": 1000.0}, floors) == []
    (line,) = report.too_slow({"a": 79.9, "b": 100.0, "c": 1000.0}, floors)
    assert line == "a: 79.9 times the reference, the floor is 100.0"
    assert len(report.too_slow({"a": 1.0, "b": 1.0, "c": float("nan")}, floors)) == 3
    assert report.too_slow({"a": 100.0, "b": 100.0}, floors) == ["c: has a floor, but was not measured"]
    assert report.too_slow({**floors, "d": 1.0}, floors) == ["d: has no floor; --floors writes one"]


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.81, 0), (0.79, 1), (0.0, 1)])
def test_check_ends_with_1_where_a_floor_is_missed(
    report: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], factor: float, code: int
) -> None:
    floor = json.loads(report.FLOORS.read_text(encoding="utf-8"))["half"]

    def measured(name: str, times: int) -> dict[str, Any]:
        return {"rates": [1.0], "ratio": floor * factor, "ratio_compiled": 1.0}

    monkeypatch.setattr(report, "measured", measured)
    before = report.PAGE.read_bytes()
    assert report.main(["--check", "--only", "half"]) == code
    assert ("the floor is" in capsys.readouterr().out) is bool(code)
    assert report.PAGE.read_bytes() == before


def test_every_case_has_a_floor_and_the_page_names_it(report: ModuleType) -> None:
    assert json.loads(report.FLOORS.read_text(encoding="utf-8")).keys() == report.CASES.keys()
    text = report.PAGE.read_text(encoding="utf-8")
    assert [case.title for case in report.CASES.values() if f"| {case.title} |" not in text] == []
