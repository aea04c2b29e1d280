"""The verifier accepts what is right, and catches each of many corruptions by the rule that it breaks."""

import ast
import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from trace_breaks import BREAKS
from trace_by_hand import BY_HAND
from trace_mutations import BASELINE, MUTATIONS
from trace_mutations_frame import SUMMARY_MUTATIONS
from trace_samples import Sample, recorded

from batchlab.errors import InputError
from batchlab.explain.source import read_events
from batchlab.trace.read import read_trace
from batchlab.trace.verify import MAX_VIOLATIONS, RULES, Report, verify

pytestmark = pytest.mark.once

SOURCES = Path(__file__).parents[1] / "src" / "batchlab" / "trace"
SAMPLES = {**recorded(), **BY_HAND}
CORE_FREE = sorted({path.name for path in SOURCES.glob("*.py")} - {"__init__.py", "encode.py", "write.py"})


def sample(name: str) -> Sample:
    """A sample of one's own to edit; skips where the recorded examples are not at hand."""
    if name not in SAMPLES:
        assert not recorded(), f"no sample {name!r}"
        pytest.skip("the recorded examples are not at hand")
    return copy.deepcopy(SAMPLES[name]())


def text(lines: list[dict[str, Any]]) -> str:
    """The lines as a file holds them."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def check(tmp_path: Path, data: str | bytes, summary: object = None) -> Report:
    """Verify what is given as a file's content."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    if summary is None:
        return verify(path)
    other = tmp_path / "summary.json"
    other.write_text(json.dumps(summary))
    return verify(path, summary=other)


def rules(report: Report) -> set[str]:
    """Names of the broken rules."""
    return {violation.rule for violation in report.violations}


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    """The JSON Schema of one line."""
    document = json.loads((SOURCES / "schema.json").read_text())
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


@pytest.mark.parametrize("name", SAMPLES)
def test_valid_trace(name: str, tmp_path: Path, schema: Draft202012Validator) -> None:
    good = sample(name)
    for line in good.lines:
        schema.validate(line)
    report = check(tmp_path, text(good.lines), good.summary)
    assert [str(violation) for violation in report.violations] == []
    assert report.ok and report.stopped is None
    assert report.iterations == good.lines[-1]["iterations"]
    assert report.requests == len(good.summary["requests"])


@pytest.mark.parametrize("name", MUTATIONS)
def test_corruption_is_caught(name: str, tmp_path: Path, schema: Draft202012Validator) -> None:
    mutation = MUTATIONS[name]
    lines = sample(mutation.sample).lines
    before = text(lines)
    mutation.edit(lines)
    assert text(lines) != before, "the mutation changed nothing"
    report = check(tmp_path, text(lines))
    assert mutation.rule in rules(report), [str(violation) for violation in report.violations]
    if "format" not in rules(report):
        assert all(schema.is_valid(line) for line in lines)
    for violation in report.violations:
        assert str(violation).isprintable() and len(str(violation)) < 400


def test_enough_kinds_of_corruption_and_every_rule_broken_once() -> None:
    assert len(MUTATIONS) >= 25
    broken = {mutation.rule for mutation in MUTATIONS.values()} | {entry.rule for entry in BREAKS.values()}
    assert broken | {"summary"} == set(RULES)


@pytest.mark.parametrize("name", SUMMARY_MUTATIONS)
def test_wrong_summary_is_caught(name: str, tmp_path: Path) -> None:
    good = sample(BASELINE)
    before = json.dumps(good.summary)
    SUMMARY_MUTATIONS[name](good.summary)
    assert json.dumps(good.summary) != before
    report = check(tmp_path, text(good.lines), good.summary)
    assert rules(report) == {"summary"}
    assert name.removeprefix("request-") in str(report.violations[0])


def test_field_missing_from_the_summary(tmp_path: Path) -> None:
    good = sample("recompute")
    del good.summary["requests"][1]["max_itl"]
    report = check(tmp_path, text(good.lines), good.summary)
    assert [(v.rule, v.request) for v in report.violations] == [("summary", "B")]


@pytest.mark.parametrize("document", [[], "x", 3])
def test_summary_is_no_object(document: object, tmp_path: Path) -> None:
    assert rules(check(tmp_path, text(sample("nothing").lines), document)) == {"summary"}


def test_summary_is_no_json(tmp_path: Path) -> None:
    trace, summary = tmp_path / "trace.jsonl", tmp_path / "summary.json"
    trace.write_text(text(sample("nothing").lines))
    summary.write_text('{"schema": 1,\n "schema": 1}')
    assert rules(verify(trace, summary)) == {"summary"}


def test_message_has_place_and_both_values(tmp_path: Path) -> None:
    lines = sample("recompute").lines
    lines[6]["preempted"][0]["computed"] = 4
    (violation,) = check(tmp_path, text(lines)).violations
    assert (violation.line, violation.iteration, violation.request) == (7, 2, "B")
    assert str(violation) == ("[progress]: line 7, iteration 2, request 'B': computed 4, but 3 tokens follow")


def test_broken_field_is_named_and_the_rest_not_judged(tmp_path: Path) -> None:
    lines = sample("recompute").lines
    lines[6]["preempted"][0]["mod"] = lines[6]["preempted"][0].pop("mode")
    report = check(tmp_path, text(lines))
    messages = [violation.message for violation in report.violations]
    assert messages == [
        "preempted[0].mode: missing",
        "preempted[0].mod: unknown field (did you mean 'mode'?)",
    ]
    assert report.stopped is not None and "line 7" in report.stopped


@pytest.mark.parametrize(
    ("data", "broken"),
    [
        (b"", {"format", "complete"}),
        (b"\xff\xfe{}\n", {"format"}),
        (b"\xef\xbb\xbf{}\n", {"format"}),
        (b"{}\n", {"format"}),
        (b"[]\n", {"format"}),
        (b"7\n", {"format"}),
        (b"\n", {"format"}),
        (b'{"type": "header", "type": "header"}\n', {"format"}),
        (b'{"type": NaN}\n', {"format"}),
        (b'{"type": -Infinity}\n', {"format"}),
        (b'{"type": 1e999}\n', {"format"}),
        (b'{"type": ' + b"9" * 5000 + b"}\n", {"format"}),
        (b'{"type": ' + b"[" * 100_000 + b"\n", {"format"}),
        (b"'type'\n", {"format"}),
        (gzip.compress(b'{"type": "header"}\n', mtime=0), {"format"}),
    ],
)
def test_no_trace_at_all(data: bytes, broken: set[str], tmp_path: Path) -> None:
    report = check(tmp_path, data)
    assert rules(report) == broken
    assert str(report.violations[0]).isprintable()
    if data != b"{}\n":
        with pytest.raises(InputError):
            list(read_trace(tmp_path / "trace.jsonl"))


def test_file_cut_within_a_line(tmp_path: Path) -> None:
    whole = text(sample("recompute").lines).encode()
    report = check(tmp_path, whole[:-40])
    assert rules(report) == {"format", "complete"}
    assert report.iterations == 6


def test_file_cut_anywhere_is_never_ok(tmp_path: Path) -> None:
    whole = text(sample("recompute").lines).encode()
    for length in range(0, len(whole) - 1, 7):
        assert not check(tmp_path, whole[:length]).ok


def test_last_newline_may_be_missing(tmp_path: Path) -> None:
    assert check(tmp_path, text(sample("recompute").lines).rstrip("\n")).ok


@pytest.mark.parametrize("make", [lambda path: path / "absent", lambda path: path])
def test_unreadable_path(make: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        verify(make(tmp_path))
    assert "\n" not in str(caught.value)
    good = tmp_path / "trace.jsonl"
    good.write_text(text(sample("nothing").lines))
    with pytest.raises(InputError):
        verify(good, summary=make(tmp_path))


def test_stops_after_many_violations(tmp_path: Path) -> None:
    lines = sample("long-queue").lines
    for line in lines:
        if line["type"] == "iteration":
            line["first_token"] = []
    report = check(tmp_path, text(lines))
    assert len(report.violations) == MAX_VIOLATIONS
    assert report.stopped == "stopped after 100 violations"


def test_wild_ids_stay_in_one_line(tmp_path: Path) -> None:
    changed = text(sample("recompute").lines).replace('"B"', '"B\\n\\u001b[31m\\ud800"')
    assert check(tmp_path, changed).ok
    report = check(tmp_path, changed.replace('"computed": 3', '"computed": 4'))
    assert len(report.violations) == 1
    assert str(report.violations[0]).isprintable()


FREE = {
    # What the policy, the client or the settings chose: no other field of these samples follows from it.
    "header": {"settings.prefill_chunk", "limits.max_num_seqs", "limits.max_queue", "max_iterations"},
    "request": {"priority", "arrival"},
    "iteration": {"scheduled", "admitted", "rejected", "preempted.*.mode", "preempted.*.place"},
}
FREE["header"] |= {f"requests.*.{field}" for field in ("priority", "arrival", "prompt")}
FREE_IF_JUMPING = {"start", "end"}


@pytest.mark.parametrize("name", [BASELINE, "both-ends-of-the-queue", "stalls", "recompute"])
def test_whatever_is_not_free_is_checked(name: str, tmp_path: Path) -> None:
    lines = sample(name).lines
    jumping = lines[0]["clock"]["idle"] == "jump"
    requests = lines[0].get("requests", [line for line in lines if line["type"] == "request"])
    ids = [request["id"] for request in requests]
    for place, line in enumerate(lines):
        free = FREE.get(line["type"], set()) | (FREE_IF_JUMPING if jumping else set())
        for path in _paths(line):
            if ".".join("*" if isinstance(step, int) else step for step in path) in free:
                continue
            for value in _alternatives(_at(line, path), ids):
                broken = copy.deepcopy(lines)
                _at(broken[place], path[:-1])[path[-1]] = value
                assert not check(tmp_path, text(broken)).ok, (place, path, value)


def _alternatives(value: Any, ids: list[str]) -> list[Any]:
    if type(value) is int:
        return [value - 1, value + 1]
    if isinstance(value, list) and value:
        changed = [value[::-1], value[1:], value[:-1], value + value[:1]]
        return [other for other in changed if other != value]
    if value in ("prefill", "decode"):
        return ["prefill" if value == "decode" else "decode"]
    return [other for other in ids if other != value] if value in ids else []


BOUNDS = [1 << 40, (1 << 40) + 1, (1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1, 10**400]


def test_every_field_is_checked_for_type_and_presence_as_the_schema_does(
    tmp_path: Path, schema: Draft202012Validator
) -> None:
    lines = sample("stalls").lines
    kinds = {line["type"]: place for place, line in enumerate(lines)}
    for place in kinds.values():
        for path in _paths(lines[place]):
            for value in (None, "", -1, 1.5, [], {}, [[]], True, "absent", *BOUNDS):
                broken = copy.deepcopy(lines)
                target = _at(broken[place], path[:-1])
                if value == "absent" and isinstance(target, dict):
                    del target[path[-1]]
                else:
                    target[path[-1]] = value
                report = check(tmp_path, text(broken))
                assert ("format" in rules(report)) == (not schema.is_valid(broken[place])), (path, value)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for step, inner in steps:
        found += _paths(inner, (*path, step))
    return found


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


@pytest.mark.parametrize("name", CORE_FREE)
def test_verifier_imports_nothing_of_the_simulator(name: str) -> None:
    for node in ast.walk(ast.parse((SOURCES / name).read_text())):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            assert node.level == 0
        for module in modules:
            if module.startswith("batchlab"):
                assert module == "batchlab.errors" or module.removeprefix("batchlab.trace.") + ".py" in CORE_FREE


@pytest.mark.parametrize(
    ("kind", "path", "value", "told"),
    [
        (
            "header",
            ("requests", 0, "prompt"),
            1 << 63,
            "prompt: 9223372036854775808: at most 2^40 expected",
        ),
        ("iteration", ("unused",), (1 << 40) + 1, "unused: 1099511627777: at most 2^40 expected"),
        ("iteration", ("scheduled", 0, 2), 1 << 41, "scheduled[0][2]: 2199023255552: at most 2^40 expected"),
        ("end", ("time",), 1 << 63, "time: 9223372036854775808: at most 2^63 - 1 expected"),
        ("header", ("requests", 0, "priority"), -(1 << 63) - 1, "-9223372036854775809: -2^63 or more expected"),
    ],
)
def test_a_number_out_of_range_is_refused_by_whoever_reads(
    tmp_path: Path, kind: str, path: tuple[Any, ...], value: int, told: str
) -> None:
    lines = sample(BASELINE).lines
    place = next(n for n, line in enumerate(lines) if line["type"] == kind)
    _at(lines[place], path[:-1])[path[-1]] = value
    report = check(tmp_path, text(lines))
    assert any(v.rule == "format" and told in v.message for v in report.violations)
    file = tmp_path / "out-of-range.jsonl"
    file.write_text(text(lines))
    with pytest.raises(InputError) as refused:
        list(read_events(file))
    assert str(refused.value).startswith(f"{file}: line {place + 1}: ") and told in str(refused.value)
