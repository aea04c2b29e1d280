"""Exports and timelines against the traces that they are made of, over random runs of every policy."""

import io
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from laws_runs import POLICIES, outcome
from step_samples import BEGINS, LONG, TIME, one_long_step
from trace_events import check_trace

from batchlab import load
from batchlab.cli.timeline import Timeline
from batchlab.clients.request import Request
from batchlab.errors import InputError
from batchlab.events import Event, Iteration
from batchlab.explain import explain
from batchlab.export import tables
from batchlab.export.chrome import REQUESTS, SCHEDULER, ChromeTrace
from batchlab.export.follow import follow
from batchlab.export.lanes import Lanes
from batchlab.export.spans import KINDS, Mark, Span, Spans
from batchlab.export.strip import Strip
from batchlab.metrics.fold import Summary
from batchlab.report.recording import Recorder, read
from batchlab.simulation import simulate
from batchlab.trace.encode import decode

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parent.parent
SEEDS = range(0, 60, 4)


def events_of(run: Any) -> list[Event]:
    return [decode(line) for line in run.lines]


@pytest.mark.parametrize("policy", POLICIES)
def test_spans_hold_what_the_trace_scheduled(policy: str) -> None:
    """Tokens by request and phase, in order; spans of a request neither overlap in time nor in iterations."""
    for seed in SEEDS:
        run = outcome(policy, seed)
        items: list[Span | Mark] = []
        observe = Spans(items.append)
        for event in events_of(run):
            observe(event)
        wanted: Counter[tuple[str, str]] = Counter()
        steps: Counter[tuple[str, str]] = Counter()
        for line in run.iterations:
            for id, phase, tokens in line["scheduled"]:
                wanted[id, phase] += tokens
                steps[id, phase] += 1
        found: Counter[tuple[str, str]] = Counter()
        cells: Counter[tuple[str, str]] = Counter()
        last: dict[str, Span] = {}
        for item in items:
            if isinstance(item, Mark):
                assert item.id not in last or item.time >= last[item.id].end
                continue
            assert item.kind in KINDS and item.start <= item.end
            if item.id in last:
                assert item.start >= last[item.id].end and item.first > last[item.id].last
            last[item.id] = item
            if item.tokens:
                found[item.id, item.kind] += item.tokens
                cells[item.id, item.kind] += item.last - item.first + 1
        assert found == wanted and cells == steps, (policy, seed)
        marks = Counter(item.kind for item in items if isinstance(item, Mark))
        results = run.summary["results"]
        assert marks["completed"] == results.get("completed", 0)
        assert marks["rejected"] == results.get("rejected", 0)
        assert marks["dropped"] == sum(results.get(name, 0) for name in ("cancelled", "expired", "failed"))
        assert marks["preempted"] == run.summary["totals"]["preemptions"]
        assert marks["turned away"] == run.summary["totals"]["retries"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_cells_of_the_timeline_are_the_trace(policy: str) -> None:
    """Against each iteration's own lists: who is scheduled, waits, holds a seat, is preempted and ends."""
    for seed in SEEDS:
        run = outcome(policy, seed)
        timeline = Timeline()
        for event in events_of(run):
            timeline(event)
        shown = {(id, number): cell for id, row in timeline.cells.items() for number, cell in row.items()}
        done = completions(run)
        for line in run.iterations:
            number, cached = line["iteration"], dict(line.get("cached", []))
            expected = {id: "D" for id, phase, _ in line["scheduled"] if phase == "decode"}
            for id, phase, tokens in line["scheduled"]:
                if phase == "prefill":
                    expected[id] = f"+{tokens}({cached[id]})" if cached.get(id) else f"+{tokens}"
            for id, body in expected.items():
                assert shown[id, number].body == body, (policy, seed, number, id)
            ended = dict.fromkeys(done[number], "#")
            ended |= {entry["id"]: "x" for entry in line.get("dropped", ())}
            ended |= {entry["id"]: "X" for entry in line["rejected"] if "retry_at" not in entry}
            here = {id: cell for (id, at), cell in shown.items() if at == number}
            assert {id: cell.after for id, cell in here.items() if cell.after} == ended
            outs = Counter(entry["id"] for entry in line["preempted"])
            assert {id: cell.before.count("P") for id, cell in here.items() if "P" in cell.before} == outs
            if isinstance(line["queue"], list) and isinstance(line["active"], list) and not run.asynchronous:
                waiting = {id for id, cell in here.items() if cell.body in (".", "p") and not cell.after}
                assert waiting == set(line["queue"]) - set(expected)
                seated = {id for id, cell in here.items() if cell.body == "-"}
                assert seated == set(line["active"]) - set(expected)
        assert {number for _, number in shown} <= set(range(len(run.iterations)))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_long_step_is_where_it_ran_with_asynchronous_scheduling_too(asynchronous: bool) -> None:
    """In spans, in the Chrome trace, in the rows of iterations, in charts over time and in what the terminal shows."""
    file, items, events = io.StringIO(), [], []
    chrome, strip, timeline = ChromeTrace(file), Strip(), Timeline()
    simulate(one_long_step(asynchronous), [chrome, Spans(items.append), strip, timeline, events.append])
    chrome.close()
    start, end = BEGINS[asynchronous], BEGINS[asynchronous] + TIME

    (prefill,) = (item for item in items if isinstance(item, Span) and item.tokens == LONG)
    assert (prefill.start, prefill.end) == (start, end)
    tracks = check_trace(json.loads(file.getvalue()))
    (drawn,) = (each for each in tracks[SCHEDULER, 1] if each["args"]["prefill tokens"] == LONG)
    assert (drawn["ts"], drawn["end"]) == (start / 1000, end / 1000)
    (row,) = (row for row in written("iterations", ".parquet", events).to_pylist() if row["prefill_tokens"] == LONG)
    assert (row["start"], row["end"], row["first_tokens"]) == (start, end, 1)
    (part,) = (part for part in strip.parts if part.prefill == LONG)
    assert (part.start, part.end, part.mean("batch")) == (start, end, 2)
    (step,) = (step for step in timeline.steps if step.line.iteration == row["iteration"])
    assert (step.start, step.end) == (start, end) and step.out is not None and step.out.first_token == ["long"]
    assert str(timeline.cells["long"][row["iteration"]]) == f"+{LONG}"


def completions(run: Any) -> dict[int, list[str]]:
    """Who ends in which iteration: that whose token it was, or in which it waited, where a preemption came before."""
    done: dict[int, list[str]] = defaultdict(list)
    queue: list[str] = []
    for line in run.iterations:
        out = run.delivered(line)
        waiting = {*queue, *(entry["id"] for entry in line["preempted"])} - set(line["admitted"])
        for id in line["completed"]:
            done[line["iteration"] if id in waiting else out["iteration"]].append(id)
        queue = line["queue"] if isinstance(line["queue"], list) else []
    return done


@pytest.mark.parametrize("policy", POLICIES)
def test_chrome_traces_nest_and_hold_the_sums(policy: str) -> None:
    for seed in SEEDS:
        run = outcome(policy, seed)
        file = io.StringIO()
        chrome = ChromeTrace(file)
        for event in events_of(run):
            chrome(event)
        chrome.close()
        tracks = check_trace(json.loads(file.getvalue()))
        tokens: Counter[str] = Counter()
        ids = []
        for (pid, _), slices in tracks.items():
            if pid != REQUESTS:
                assert [each["args"]["iteration"] for each in slices] == list(range(len(run.iterations)))
                continue
            (outer,) = (each for each in slices if each["depth"] == 0)
            ids.append(outer["name"].removeprefix("request "))
            assert outer["args"]["prompt"] == run.requests[ids[-1]]["prompt"]
            assert all(each["depth"] == 1 and each["name"] in KINDS for each in slices if each is not outer)
            for each in slices[:-1]:
                tokens[each["name"]] += each["args"].get("tokens", 0)
        assert sorted(ids) == sorted({id for line in run.iterations for id in line["arrived"]})
        totals = run.summary["totals"]
        assert (tokens["prefill"], tokens["decode"]) == (totals["prefill_tokens"], totals["decode_tokens"])


CROWDED = """
[engine]
policy = "vllm"
max_num_seqs = 4
max_num_batched_tokens = 24
num_gpu_blocks = 9
block_size = 4
max_num_queued_reqs = 2
async_scheduling = ASYNC
[cost]
model = "linear"
unit = "ns"
per_iteration = 1500
prefill_token = 7
[workload]
retry = { limit = 3, wait = 4001, factor = 2 }
"""


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_chrome_traces_nest_where_steps_overlap_and_clients_come_again(asynchronous: str, tmp_path: Path) -> None:
    """Every attempt has its slices inside its request's, one after the other; between two attempts is a backoff."""
    rng = Random(9)
    listed = [f"{{id = 'r{n}', arrival = {n * 900}, prompt = {rng.randint(5, 12)}, output = 14}}" for n in range(12)]
    path = tmp_path / "crowded.toml"
    path.write_text(CROWDED.replace("ASYNC", asynchronous) + f"requests = [{', '.join(listed)}]\n", encoding="utf-8")
    (run,) = load(path).runs
    file, summary = io.StringIO(), Summary()
    chrome = ChromeTrace(file)
    simulate(run, [chrome, summary])
    chrome.close()
    totals = summary.totals()
    assert totals["preemptions"] > 0 and totals["retries"] > 3 and summary.header is not None
    assert summary.header.steps_in_flight == (2 if asynchronous == "true" else 1)
    events = json.loads(file.getvalue())
    tracks = {track: slices for track, slices in check_trace(events).items() if track[0] == REQUESTS}
    away, parked = 0, 0
    for slices in tracks.values():
        *inner, outer = slices
        assert outer["depth"] == 0 and all(each["depth"] == 1 for each in inner)
        for before, after in pairwise(inner):
            assert outer["ts"] <= before["ts"] <= before["end"] <= after["ts"] <= after["end"] <= outer["end"]
        away += sum(each["name"] == "retrying" for each in inner)
        parked += sum(each["name"] == "preempted" for each in inner)
    assert len(tracks) == 12 and away == totals["retries"] and parked > 0
    instants = Counter(event["name"] for event in events["traceEvents"] if event["ph"] == "i")
    assert (instants["turned away"], instants["preempted"]) == (totals["retries"], totals["preemptions"])


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_of_iterations_add_up_to_the_totals(policy: str) -> None:
    for seed in SEEDS:
        run = outcome(policy, seed)
        rows = written("iterations", ".parquet", events_of(run))
        totals = run.summary["totals"]
        assert rows.num_rows == len(run.iterations)
        sums = {
            name: sum(value or 0 for value in rows[name].to_pylist())
            for name in rows.column_names
            if name not in tables.TEXTS
        }
        for name in ("prefill_tokens", "decode_tokens", "cached_tokens", "retries"):
            assert sums[name] == totals[name]
        assert sums["preempted"] == totals["preemptions"]
        assert sums["rejected"] == sum(totals["rejections"].values())
        assert sums["unused"] == (totals["unused_budget"] or 0)
        assert sums["kv_moved"] == totals["moved_blocks"]
        assert sums["completed"] == run.summary["results"].get("completed", 0)
        assert max(rows["queue"].to_pylist(), default=0) == totals["max_queue_length"]


@pytest.mark.parametrize("what", ["requests", "iterations"])
def test_every_format_says_the_same(what: str) -> None:
    for policy in POLICIES[::3]:
        for seed in range(1, 9):
            run = outcome(policy, seed)
            if run.iterations:
                parquet, arrow, text = (written(what, kind, events_of(run)) for kind in (".parquet", ".arrow", ".csv"))
                assert parquet.equals(arrow)
                assert parquet.to_pylist() == text.cast(parquet.schema).to_pylist()
            if what == "requests" and run.iterations:
                asked = run.summary["requests"]
                assert parquet["id"].to_pylist() == [request["id"] for request in asked]
                assert parquet["ttft"].to_pylist() == [request["ttft"] for request in asked]


def written(what: str, ending: str, events: list[Event]) -> Any:
    """What a table's file holds, read back."""
    file = io.BytesIO()

    def tell(observers: Any) -> Any:
        for event in events:
            for observe in observers:
                observe(event)
        return events[-1]

    tables.write(what, Unclosed(file), ending, tell)
    file.seek(0)
    if ending == ".parquet":
        return pa.parquet.read_table(file)
    if ending == ".arrow":
        return pa.ipc.open_file(file).read_all()
    # An empty cell is null; an empty text would be quoted.
    options = pa.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""])
    return pa.csv.read_csv(file, convert_options=options)


class Unclosed(io.BufferedIOBase):
    """A file that stays open when its writer closes it."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()


def test_the_docs_have_every_column_of_the_iterations() -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    part = text[text.index("## Iterations") :]
    listed = [
        name.strip("`")
        for line in part.splitlines()
        if line.startswith("| `")
        for name in line.split("|")[1].strip().split(", ")
    ]
    assert listed == list(tables.COLUMNS)


@pytest.mark.parametrize("most", [2, 8, 64])
def test_a_strip_keeps_its_sums_in_few_parts(most: int) -> None:
    """Joining parts loses nothing that adds up, and no time."""
    for policy in POLICIES:
        run = outcome(policy, Random(f"{policy} {most}").choice(SEEDS))
        strip = Strip(most)
        for event in events_of(run):
            strip(event)
        assert len(strip.parts) <= most
        assert sum(part.iterations for part in strip.parts) == len(run.iterations)
        totals = run.summary["totals"]
        assert sum(part.prefill for part in strip.parts) == totals["prefill_tokens"]
        assert sum(part.unused for part in strip.parts) == (totals["unused_budget"] or 0)
        assert strip.most_of("queue") == totals["max_queue_length"]
        waited = sum(
            (line["queue"] if isinstance(line["queue"], int) else len(line["queue"])) * (line["end"] - line["start"])
            for line in run.iterations
        )
        assert sum(part.queue_area for part in strip.parts) == waited
        if strip.parts:
            assert (strip.parts[0].start, strip.parts[-1].end) == (
                run.iterations[0]["start"],
                run.iterations[-1]["end"],
            )


def test_lanes_of_very_many_requests_are_every_nth() -> None:
    run = outcome("vllm", 7)  # a crowd: 300 requests
    lanes, all_lanes = Lanes(50), Lanes()
    for event in events_of(run):
        lanes(event)
        all_lanes(event)
    assert lanes.came == all_lanes.came == 300 and lanes.each == 8
    assert list(lanes.rows) == list(all_lanes.rows)[::8]
    for id, lane in lanes.rows.items():
        assert sum(span.tokens for span in lane.spans) == sum(span.tokens for span in all_lanes.rows[id].spans)


def test_a_trace_that_contradicts_itself_is_one_error(tmp_path: Path) -> None:
    """Drop or repeat any line: an error that names the line, or what is left is a trace in itself."""
    run = next(run for run in map(outcome, ["vllm"] * 60, SEEDS) if len(run.iterations) > 20)
    lines = run.text.splitlines()
    refused = 0
    for place in range(1, len(lines)):
        for kept in ([*lines[:place], *lines[place + 1 :]], [*lines[: place + 1], *lines[place:]]):
            file = tmp_path / "t.jsonl"
            file.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            try:
                follow(file, [Spans(lambda item: None), Summary()])
            except InputError as error:
                refused += 1
                assert str(error).startswith(f"{file}: line ")
    assert refused > len(lines) // 2


@pytest.mark.parametrize("policy", ["vllm", "vllm-v0", "triton"])
def test_a_line_in_the_wrong_place_is_one_error_for_everyone_who_reads(policy: str, tmp_path: Path) -> None:
    """Copy any line to any place: each reader says which line contradicts those before it, or takes the file."""
    trace = tmp_path / "t.jsonl"
    lines = next(r for r in map(outcome, [policy] * 60, SEEDS) if len(r.iterations) > 20).text.splitlines()
    random, refused = Random(policy), 0
    for _ in range(150):
        kept = list(lines)
        kept.insert(random.randrange(1, len(lines)), random.choice(lines))
        trace.write_text("".join(f"{line}\n" for line in kept))
        readers: list[Callable[[], object]] = [
            lambda: follow(trace, [Spans(lambda item: None), Summary()]),
            lambda: read(trace, [Recorder()]),
            lambda: explain(trace),
        ]
        for reader in readers:
            try:
                reader()
            except InputError as error:
                refused += 1
                assert str(error).startswith(f"{trace}: line ")
    assert refused > 300


def test_a_batch_of_one_without_a_seat_is_refused() -> None:
    """By hand: a has its seat, b only waits, and the batch holds b alone: a is neither in it nor said to be held."""
    observe = Spans(lambda item: None)
    for id in "ab":
        observe(Request(id, 0, 1, 2, 2))
    line: dict[str, Any] = {"iteration": 0, "start": 0, "end": 1, "arrived": ["a", "b"], "admitted": ["a"]}
    line |= {"scheduled": [("b", "prefill", 1)], "delivers": 0, "queue": ["b"], "active": ["a"]}
    empty = ("rejected", "dropped", "preempted", "cached", "prefill_done", "first_token", "completed", "discarded")
    with pytest.raises(InputError, match="request 'b': one with a seat expected; batchlab verify says what is wrong"):
        observe(Iteration(**{name: [] for name in empty}, **line, unused=None, idle=None))


def test_requests_that_are_not_known_are_refused() -> None:
    observe = Spans(lambda item: None)
    observe(Request("a", 0, 1, 1, 1))
    with pytest.raises(InputError, match="each request once"):
        observe(Request("a", 0, 1, 1, 1))


def test_samples_behind_a_cdf_are_those_of_the_figures() -> None:
    from batchlab.export.spread import weighted

    run = outcome("vllm", 7)
    summary = Summary()
    for event in events_of(run):
        summary(event)
    for name, figures in run.summary["latency"].items():
        if name in ("ttft", "itl", "e2el"):
            values, counts = weighted(summary, name)
            samples = np.repeat(values, counts.astype(int))
            assert len(samples) == figures["count"]
            assert np.percentile(samples, [50, 99]).tolist() == pytest.approx([figures["p50"], figures["p99"]])


def test_the_last_bucket_of_gaps_ends_with_the_largest_gap() -> None:
    from batchlab.core.tally import Tally
    from batchlab.export.spread import weighted

    summary = Summary()
    summary.tally = Tally(0)
    for gap in range(1_000_003, 6_000_000, 997):
        summary.tally.gaps.add(gap, 1)
    assert not summary.tally.gaps.exact
    assert weighted(summary, "itl")[0][-1] == summary.tally.gaps.largest


def test_no_line_of_a_cdf_runs_through_its_legend_and_no_label_touches_another() -> None:
    from batchlab.export.charts import LatencyChart

    chart = LatencyChart()
    for event in events_of(outcome("vllm", 7)):
        for observer in chart.observers:
            observer(event)
    figure = chart.draw()
    figure.canvas.draw()
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
        low, high = axes.get_xlim()
        labels = [
            label
            for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
            if low <= place <= high
        ]
        boxes = [label.get_window_extent() for label in labels]
        assert len(boxes) >= 2
        assert all(left.x1 + 4 < right.x0 for left, right in pairwise(boxes))
