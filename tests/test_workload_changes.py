"""Changes to a workload, its figures, and the forms of file beside CSV and JSON Lines."""

import io
import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchlab.clients import fast_csv, lists_file, parquet, readers
from batchlab.clients.columns import Columns, Origin
from batchlab.clients.describe import figures, shared_runs
from batchlab.clients.growing import Growing
from batchlab.clients.layout import Layout
from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.transform import TransformTable
from batchlab.clients.workload import FileTable
from batchlab.errors import InputError
from batchlab.metrics.fold import Summary
from batchlab.scenario import build, load
from batchlab.settings import validate
from batchlab.simulation import simulate
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

pytestmark = pytest.mark.once

EXAMPLES = Path(__file__).parents[1] / "examples"
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
NAMES = {"arrival": "at", "prompt": "in", "output": "out"}
ALL = {**NAMES, "id": "name", "max_tokens": "most", "priority": "rank"}
needs_traces = pytest.mark.skipif(not TRACES.exists(), reason="the public traces are not here")


def read(tmp_path, content, **settings):
    path = tmp_path / "w"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return validate(FileTable, {"file": "w", **settings}).read(tmp_path, "ns")


def some(count=1000, hashes=False):
    rng = np.random.default_rng(4)
    prompt = rng.integers(1, 3000, count)
    blocks = None
    if hashes:
        counts = -(-prompt // 512)
        blocks = (np.concatenate(([0], np.cumsum(counts))), rng.integers(0, 50, counts.sum()))
    arrival = np.sort(rng.integers(0, 10**12, count))
    return Columns(arrival, prompt, rng.integers(1, 500, count), hashes=blocks, origin=Origin("w.csv", "0", "csv"))


def changed(columns, **settings):
    return validate(TransformTable, settings).apply(columns)


# Changes


def test_a_slice_counts_from_its_beginning_and_keeps_the_row_numbers():
    before = some()
    found = changed(before, from_time=2 * 10**11, to_time=5 * 10**11)
    chosen = [r for r in before if 2 * 10**11 <= r.arrival < 5 * 10**11]
    assert [r.id for r in found] == [r.id for r in chosen]
    assert [r.arrival for r in found] == [r.arrival - 2 * 10**11 for r in chosen]
    assert found.origin.steps == (
        f"arrivals from 200,000,000,000 to before 500,000,000,000: {len(chosen)} of 1,000 requests",
    )
    assert before.origin.steps == () and len(before) == 1000


def test_samples_are_of_their_size_and_nested():
    before = some(100_000)
    small, large = (changed(before, sample=share, seed=3) for share in (0.1, 0.4))
    for found, share in ((small, 0.1), (large, 0.4)):
        assert abs(len(found) - share * 100_000) < 4.5 * math.sqrt(100_000 * share * (1 - share))
    assert set(small.numbers.tolist()) < set(large.numbers.tolist())
    assert set(changed(before, sample=0.1, seed=4).numbers.tolist()) != set(small.numbers.tolist())


def test_rate_scale_divides_times():
    before = some()
    found = changed(before, rate_scale=2.5)
    assert [int(t) for t in found.arrival] == [round(int(t) / 2.5) for t in before.arrival]
    assert found.origin.steps == ("times divided by rate_scale 2.5",)
    assert (found.prompt == before.prompt).all()


def test_clip_and_drop_to_max_model_len():
    before = some(hashes=True)
    dropped = changed(before, max_model_len=1024, too_long="drop")
    assert [r.id for r in dropped] == [r.id for r in before if r.prompt + r.output <= 1024]
    clipped = changed(before, max_model_len=1024, too_long="clip")
    for a, b, k in zip(before, clipped, range(1000), strict=True):
        assert b.prompt == min(a.prompt, 1023) and b.output == min(a.output, 1024 - b.prompt) == b.max_tokens
        assert clipped.block_hashes(k) == before.block_hashes(k)[: -(-b.prompt // 512)]
    count = sum(r.prompt + r.output > 1024 for r in before)
    assert clipped.origin.steps == (f"{count:,} requests clipped to 1,024 tokens (max_model_len)",)


def test_max_tokens_cuts_outputs_and_is_no_oracle():
    before = some()
    found = changed(before, max_tokens=100)
    assert all(b.output == min(a.output, 100) and b.max_tokens == 100 for a, b in zip(before, found, strict=True))
    assert found.origin.rule == "max_tokens = 100 for every request"


def test_the_order_of_changes_is_fixed():
    found = changed(some(), to_time=5 * 10**11, sample=0.5, seed=1, rate_scale=2.0, max_model_len=2000, too_long="drop")
    kinds = [step.split()[0] for step in found.origin.steps]
    assert kinds == ["arrivals", "sample", "times", "at"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sample": 0.5}, "sample and seed go together"),
        ({"seed": 1}, "sample and seed go together"),
        ({"sample": 1.5, "seed": 1}, "sample: 1.5"),
        ({"sample": math.nan, "seed": 1}, "sample: nan"),
        ({"rate_scale": 0}, "rate_scale: 0"),
        ({"rate_scale": math.inf}, "rate_scale: inf"),
        ({"max_model_len": 5}, "max_model_len and too_long go together"),
        ({"max_model_len": 1, "too_long": "drop"}, "max_model_len: 1: must be at least 2"),
        ({"from_time": 5, "to_time": 5}, "from_time = 5 must be before to_time = 5"),
        ({"from_time": -5}, "from_time: -5: must be at least 0"),
        ({"from_time": 2**61}, "leaves no request"),
        ({"max_model_len": 2, "too_long": "drop"}, "leaves no request"),
        ({"rate_scael": 2}, "rate_scael: unknown key (did you mean 'rate_scale'?)"),
    ],
)
def test_changes_that_are_refused(settings, expected):
    with pytest.raises(InputError) as caught:
        changed(some(), **settings)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (
            {"rate_scale": 2.0},
            "workload.transform.rate_scale: only for a file; in [workload.generate] set request_rate",
        ),
        ({"sample": 0.5, "seed": 1}, "workload.transform.sample: only for a file"),
        ({"max_model_len": 30, "too_long": "clip"}, "workload.transform.too_long: 'clip': would tear shared prompts"),
        ({"max_tokens": 3}, "workload.transform.max_tokens: 3: would cut outputs that later prompts repeat"),
    ],
)
def test_changes_that_do_not_go_with_sessions(transform, expected):
    with pytest.raises(InputError) as caught:
        sessions_run(transform)
    assert str(caught.value).startswith(expected)


def sessions_run(transform):
    generate = {"num_prompts": 60, "seed": 2, "arrivals": "poisson", "request_rate": 50.0, "prompt": 10, "output": 5}
    return build(
        {
            "engine": {"policy": "chunked", "prefill_chunk": 4, "max_num_batched_tokens": 8},
            "cost": {"model": "linear", "unit": "ns", "per_iteration": 10**6},
            "workload": {"generate": {**generate, "turns": 4, "turn_gap": 0}, "transform": transform},
        }
    ).runs[0]


def test_a_session_ends_where_its_prompt_no_longer_fits():
    found = sessions_run({"max_model_len": 30, "too_long": "drop"}).requests
    assert sorted(set(found.prompt.tolist())) == [10, 25]
    assert len(found) == 30 and found.sessions.previous.max() < 30
    assert all(sum(run[2] for run in found.tokens(k).prompt) == r.prompt for k, r in enumerate(found))


def test_a_trace_tells_what_was_done_and_verifies(tmp_path):
    run = sessions_run({"max_model_len": 30, "too_long": "drop"})
    result = Summary()
    with (tmp_path / "t.jsonl").open("w") as file:
        simulate(run, [result, TraceWriter(file, result)])
    header = json.loads((tmp_path / "t.jsonl").read_text().split("\n")[0])
    assert header["source"]["steps"] == [
        "arrivals poisson (request_rate 50/s) of sessions, seed 2",
        "at most 30 tokens (max_model_len): 30 of 60 requests",
    ]
    assert verify(tmp_path / "t.jsonl").ok


# Figures


def test_figures_by_hand():
    columns = Columns(np.array([0, 30, 59, 61, 200]) * 10**9, np.array([1, 2, 3, 4, 10]), np.array([1, 1, 1, 1, 6]))
    found = figures(columns, "ns")
    assert found["span"] == 200 * 10**9 and found["request_rate"] == 4 / 200
    assert found["peak_per_minute"] == 3
    gaps = [30, 29, 2, 139]
    cv = math.sqrt(sum((g - 50) ** 2 for g in gaps) / 4) / 50
    assert math.isclose(found["cv_of_gaps"], cv) and math.isclose(found["burstiness"], cv**-2)
    assert math.isclose(found["prompt"]["p90"], 4 + 0.6 * 6) and found["prompt"]["total"] == 20
    assert found["shared"] is None and found["classes"] is None
    at_once = figures(Columns(np.zeros(3, np.int64), np.ones(3, np.int64), np.ones(3, np.int64)), "iteration")
    assert at_once["request_rate"] is None and at_once["cv_of_gaps"] is None and at_once["peak_per_minute"] is None


def test_shared_blocks_by_hand():
    columns = some(400, hashes=True)
    known, repeated = set(), 0
    for k, request in enumerate(columns):
        blocks = columns.block_hashes(k)
        lengths = [512] * (len(blocks) - 1) + [request.prompt - 512 * (len(blocks) - 1)]
        for block, length in zip(blocks, lengths, strict=True):
            if block not in known:
                break
            repeated += length
        known |= set(blocks)
    assert figures(columns, "ns")["shared"]["tokens"] == repeated > 0


@needs_traces
@pytest.mark.parametrize(
    ("file", "form", "rows", "cv"),
    [
        ("azure-2023/AzureLLMInferenceTrace_conv.csv", "azure", 19_366, 1.09),
        ("azure-2023/AzureLLMInferenceTrace_code.csv", "azure", 8_819, 13.2),
    ],
)
def test_figures_of_public_traces(file, form, rows, cv):
    columns = validate(FileTable, {"file": file, "format": form}).read(TRACES, "ns")
    found = figures(columns, "ns")
    assert found["requests"] == rows and abs(found["cv_of_gaps"] / cv - 1) < 0.006


@needs_traces
@pytest.mark.parametrize(("name", "share"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_shared_blocks_of_public_traces(name, share):
    """Against the published share of blocks: tokens differ from it by the prompts' last blocks, which are not full."""
    file = {"file": f"mooncake/{name}_trace.jsonl", "format": "mooncake"}
    columns = validate(FileTable, file).read(TRACES, "ns")
    assert abs(figures(columns, "ns")["shared"]["share"] - share) < 0.02


# Forms of file


def test_azure_of_2024(tmp_path):
    rows = ["2024-05-10 00:00:00.009930+00:00,2162,5", "2024-05-10 00:00:00.017335+00:00,2399,6"]
    rows += ["2024-05-12 00:00:00+00:00,4,1"]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n"
    assert fast_csv.read(Path("w.csv"), io.BytesIO(text.encode()), Layout(_azure(), "stamp")) is not None
    found = read(tmp_path, text, format="azure")
    assert found.field("arrival") == [0, 7_405_000, 2 * 86_400 * 10**9 - 9_930_000]
    mixed = text.replace("17335+00:00", "17335")
    assert read(tmp_path, mixed, format="azure").field("arrival") == found.field("arrival")
    with pytest.raises(InputError, match=r"line 3, column 'TIMESTAMP': '2024-05-10 00:00:00\.017335\+02:00'"):
        read(tmp_path, text.replace("17335+00:00", "17335+02:00"), format="azure")


def _azure():
    return {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.mark.parametrize("quoted", [False, True])
def test_burstgpt_with_and_without_failures(tmp_path, quoted):
    text = BURST + '5,ChatGPT,472,18,490,"API log"\n45,ChatGPT,0,0,0,API log\n118,GPT-4,417,276,693,API log\n'
    text = text if quoted else text.replace('"', "")
    with pytest.raises(InputError, match="line 3, column 'Request tokens': '0': must be at least 1"):
        read(tmp_path, text, format="burstgpt")
    found = read(tmp_path, text, format="burstgpt", drop_empty=True)
    assert [(r.arrival, r.prompt, r.output) for r in found] == [(0, 472, 18), (113 * 10**9, 417, 276)]
    assert found.origin.steps == ("1 rows with a length of 0 dropped (drop_empty = true)",)
    with pytest.raises(InputError, match="each of its 1 rows has a length of 0"):
        read(tmp_path, BURST + "45,ChatGPT,0,0,0,API log\n", format="burstgpt", drop_empty=True)
    with pytest.raises(InputError, match="line 3, column 'Timestamp': 'x'"):
        read(tmp_path, text.replace("45,", "x,"), format="burstgpt", drop_empty=True)


def test_vidur_and_times_finer_than_a_ns(tmp_path):
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,2\n1.23456789049,10,2\n1.2345678905,9,3\n"
    with pytest.raises(InputError, match=r"line 3, column 'arrived_at': '1\.23456789049': is finer than a nanosecond"):
        read(tmp_path, text, format="vidur")
    found = read(tmp_path, text, format="vidur", round_times=True)
    assert found.field("arrival") == [0, 734_567_890, 734_567_890] and "times rounded to ns" in found.origin.steps


def test_rounding_times_is_exact(tmp_path):
    rng = random.Random(3)
    cells = sorted((f"{rng.randrange(10**6)}.{rng.randrange(10**15):015}" for _ in range(300)), key=float)
    text = "at,in,out\n" + "".join(f"{cell},1,1\n" for cell in cells)
    found = read(tmp_path, text, format="csv", columns=NAMES, time_unit="s", round_times=True, sort=True)
    from decimal import Decimal

    exact = [int((Decimal(cell) * 10**9).to_integral_value()) for cell in cells]
    assert found.field("arrival") == sorted(value - min(exact) for value in exact)


def test_llmservingsim(tmp_path):
    line = '{"input_toks": 128, "output_toks": 512, "arrival_time_ns": %s, "input_tok_ids": [1, 2]}\n'
    assert read(tmp_path, line % "5.0" + line % "7", format="llmservingsim").field("arrival") == [0, 2]
    with pytest.raises(InputError, match=r"line 2, key 'arrival_time_ns': 7\.25: is finer than a nanosecond"):
        read(tmp_path, line % "5.0" + line % "7.25", format="llmservingsim")


@needs_traces
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("sharegpt_8k_filtered_stats_llama2_tokenizer", 30_731),
        ("arxiv_summarization_stats_llama2_tokenizer_filtered_v2", 28_257),
    ],
)
def test_sarathi_lengths(name, rows):
    lengths = {"file": f"lengths/{name}.csv", "format": "sarathi", "draw": "in-order"}
    generate = {"num_prompts": rows, "seed": 1, "arrivals": "poisson", "request_rate": 1.0, "lengths": lengths}
    scenario = {
        "engine": {"policy": "chunked", "prefill_chunk": 4, "max_num_batched_tokens": 8},
        "cost": {"model": "linear", "unit": "ns", "per_iteration": 1},
        "workload": {"generate": generate},
    }
    found = build(scenario, folder=TRACES).runs[0].requests
    lines = (TRACES / "lengths" / f"{name}.csv").read_text().splitlines()[1:]
    assert len(lines) == rows
    assert [(r.prompt, r.output) for r in found[:50]] == [tuple(map(int, line.split(",")[:2])) for line in lines[:50]]
    assert int((found.prompt + found.output).sum()) == sum(int(float(line.split(",")[2])) for line in lines)


BENCH = {"date": "x", "input_lens": [5, 6], "output_lens": [3, 4], "start_times": [100.25, 100.5], "ttfts": [0.1, 0.2]}


def test_vllm_bench_results(tmp_path):
    found = read(tmp_path, json.dumps(BENCH), format="vllm-bench")
    assert [(r.arrival, r.prompt, r.output) for r in found] == [(0, 5, 3), (250_000_000, 6, 4)]
    assert found.origin.steps == ("times rounded to ns",)
    finer = {**BENCH, "start_times": [48913.07518261019, 48913.1]}
    assert read(tmp_path, json.dumps(finer), format="vllm-bench").field("arrival") == [0, 24_817_390]
    failed = {**BENCH, "output_lens": [3, 0]}
    assert len(read(tmp_path, json.dumps(failed), format="vllm-bench", drop_empty=True)) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"start_times": None}, "start_times: must be a list"),
        ({"start_times": ...}, "has no list 'start_times'; older versions of vLLM write none"),
        ({"input_lens": ...}, "has no list 'input_lens'; was it run with --save-detailed?"),
        ({"input_lens": 5}, "input_lens: 5: must be a list"),
        ({"input_lens": [5]}, "its lists must have the same length: start_times has 2, input_lens has 1"),
        ({"input_lens": [5, 0]}, "input_lens[1]: 0: must be at least 1"),
        ({"input_lens": [5, "6"]}, "input_lens[1]: '6': must be a number, not a text"),
        ({"output_lens": [5, 2.5]}, "output_lens[1]: 2.5: must be a whole number"),
        ({"output_lens": [5, True]}, "output_lens[1]: True: must be a number"),
        ({"start_times": [5, math.nan]}, "start_times[1]: nan: must be a number"),
        ({"start_times": [5, -1.5]}, "start_times[1]: -1.5: must not be negative"),
        ({"start_times": [5, 4]}, "start_times[1]: 4: is earlier than entry 0; rows must be in order of arrival"),
        ({"start_times": [], "input_lens": [], "output_lens": []}, "has no requests"),
    ],
)
def test_vllm_bench_results_that_are_refused(tmp_path, changes, expected):
    document = {key: value for key, value in {**BENCH, **changes}.items() if value is not ...}
    with pytest.raises(InputError) as caught:
        read(tmp_path, json.dumps(document), format="vllm-bench")
    assert str(caught.value).removeprefix(f"{tmp_path / 'w'}: ").startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ("[]", "must be one JSON object"),
        ('{"a": [1', "line 1: not a JSON document"),
        ('{"a": 1, "a": 2}', "not a JSON document: a key stands twice"),
        ("[" * 100_000, "not a JSON document"),
        (b"\xff{}", "line 1: b'\\xff': not UTF-8"),
        (b"PAR1xx", "is a Parquet file"),
    ],
)
def test_no_vllm_bench_results(tmp_path, content, expected):
    with pytest.raises(InputError) as caught:
        read(tmp_path, content, format="vllm-bench")
    assert str(caught.value).removeprefix(f"{tmp_path / 'w'}: ").startswith(expected)


# Parquet


def parquet_file(tmp_path, table, **settings):
    path = tmp_path / "w"
    pq.write_table(pa.table(table), path, row_group_size=7)
    return validate(
        FileTable, {"file": "w", "format": "parquet", "columns": NAMES, "time_unit": "ms", **settings}
    ).read(tmp_path, "ns")


def test_parquet_gives_what_csv_gives(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BATCH", 5)
    rng = random.Random(6)
    for case in range(30):
        count = rng.randint(1, 60)
        sort, drop = rng.random() < 0.5, rng.random() < 0.5
        times = [rng.randrange(10**6) for _ in range(count)]
        rows = {
            "at": times if sort else sorted(times),
            "in": [rng.randint(0 if drop else 1, 5) for _ in range(count)],
            "out": [rng.randint(0 if drop else 1, 5) for _ in range(count)],
            "name": [f"n{k}" for k in range(count)],
            "rank": [rng.randint(-3, 3) for _ in range(count)],
        }
        rows["most"] = [out + rng.randint(0, 3) for out in rows["out"]]
        rows["most"] = [max(most, 1) for most in rows["most"]]
        limit = rng.choice([None, rng.randint(1, 70)])
        settings = {"columns": ALL, "time_unit": "ms", "sort": sort, "drop_empty": drop} | (
            {"limit": limit} if limit else {}
        )
        text = (
            ",".join(rows) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in zip(*rows.values(), strict=True))
        )
        try:
            expected = list(read(tmp_path, text, format="csv", **settings))
        except InputError as error:
            assert "length of 0" in str(error)
            with pytest.raises(InputError, match="length of 0"):
                parquet_file(tmp_path, rows, **settings)
            continue
        assert list(parquet_file(tmp_path, rows, **settings)) == expected, case


def test_parquet_times(tmp_path):
    lengths = {"in": [1, 1], "out": [1, 1]}
    for unit, factor in (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)):
        stamps = pa.array([1000, 1007], pa.timestamp(unit))
        found = parquet_file(tmp_path, {"at": stamps, **lengths}, time_unit="timestamp")
        assert found.field("arrival") == [0, 7 * factor]
        found = parquet_file(tmp_path, {"at": pa.array([1000, 1007], pa.int32()), **lengths}, time_unit=unit)
        assert found.field("arrival") == [0, 7 * factor]
    floats = {"at": [0.25, 1700000000.5], **lengths}
    found = parquet_file(tmp_path, floats, time_unit="s", round_times=True)
    assert found.field("arrival") == [0, 1_700_000_000_250_000_000]
    with pytest.raises(InputError, match="is of type double, no exact time: round_times = true takes the nearest ns"):
        parquet_file(tmp_path, floats, time_unit="s")


PARQUET_TROUBLES = [
    ({"in": [1, None]}, {}, "row 1, column 'in': is null"),
    ({"in": [1, 0]}, {}, "row 1, column 'in': 0: must be at least 1"),
    ({"in": [1, 2**41]}, {}, f"row 1, column 'in': {2**41}: must be at most"),
    ({"in": pa.array([1, 2**64 - 1], pa.uint64())}, {}, f"row 1, column 'in': {2**64 - 1}: must be at most"),
    ({"in": [1.0, 2.0]}, {}, "row 0, column 'in': is of type double; whole numbers are needed"),
    ({"in": ["1", "2"]}, {}, "row 0, column 'in': is of type string; whole numbers are needed"),
    ({"in": [True, False]}, {}, "row 0, column 'in': is of type bool"),
    ({"at": [-1, 2]}, {}, "row 0, column 'at': -1: must be at least 0"),
    ({"at": [0, 2**62]}, {}, f"row 1, column 'at': {2**62}: must be at most"),
    ({"at": [2, 1]}, {}, "column 'at': request 1 is earlier than the one before"),
    ({"at": [0.0, math.nan]}, {"round_times": True}, "row 1, column 'at': nan: must be a time, not negative"),
    ({"at": [0.0, math.inf]}, {"round_times": True}, "row 1, column 'at': inf: must be at most 2^62"),
    (
        {"at": pa.array([1, 2], pa.timestamp("ms"))},
        {},
        "row 0, column 'at': is of type timestamp[ms]: time_unit must be",
    ),
    ({}, {"time_unit": "timestamp"}, "row 0, column 'at': is of type int64: time_unit must be its unit"),
    ({}, {"columns": {**NAMES, "prompt": "inn"}}, "has no column 'inn' (did you mean 'in'?); it has: at, in, out"),
    ({"name": ["a", "a"]}, {"columns": {**NAMES, "id": "name"}}, "column 'name': 'a': must be unique"),
    ({"name": ["a", ""]}, {"columns": {**NAMES, "id": "name"}}, "row 1, column 'name': '': is empty"),
    ({"name": [0.5, 1.5]}, {"columns": {**NAMES, "id": "name"}}, "row 0, column 'name': is of type double"),
    (
        {"most": [9, 1], "out": [2, 2]},
        {"columns": {**NAMES, "max_tokens": "most"}},
        "row 1, column 'most': 1: must be at",
    ),
    (
        {"at": pa.array([], pa.int64()), "in": pa.array([], pa.int64()), "out": pa.array([], pa.int64())},
        {},
        "has no rows",
    ),
]


@pytest.mark.parametrize(("changes", "settings", "expected"), PARQUET_TROUBLES)
def test_parquet_troubles(tmp_path, changes, settings, expected):
    table = {"at": [0, 1], "in": [1, 1], "out": [1, 1], **changes}
    with pytest.raises(InputError) as caught:
        parquet_file(tmp_path, table, **settings)
    assert str(caught.value).removeprefix(f"{tmp_path / 'w'}: ").startswith(expected)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"at,in\n", "is not a Parquet file"),
        (b"PAR1", "cannot be read as a Parquet file"),
        (b"PK\x03\x04", "is a zip"),
    ],
)
def test_no_parquet(tmp_path, content, expected):
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        parquet.read(path, Layout(NAMES, "s"))
    assert str(caught.value).removeprefix(f"{path}: ").startswith(expected)
    for other in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError):
            parquet.read(other, Layout(NAMES, "s"))


def test_a_damaged_parquet_file(tmp_path):
    path = tmp_path / "w"
    pq.write_table(pa.table({"at": range(1000), "in": range(1, 1001), "out": range(1, 1001)}), path)
    data = path.read_bytes()
    for cut in (len(data) // 2, len(data) - 5):
        path.write_bytes(data[:cut])
        with pytest.raises(InputError, match="cannot be read as a Parquet file"):
            parquet.read(path, Layout(NAMES, "s"))


# Streaming


def test_blocks_of_any_size_give_the_same(tmp_path, monkeypatch):
    rows = "".join(f"{k}.5,{k % 97 + 1},{k % 13 + 1}\n" for k in range(400))
    for text in (f"at,in,out\n{rows}", f"at,in,out\n{rows}"[:-1], f"at,in,out\n{rows}".replace("\n", "\r\n")):
        whole = list(fast_csv.read(Path("w.csv"), io.BytesIO(text.encode()), Layout(NAMES, "s")))
        assert len(whole) == 400
        for size in (1, 7, 64, 1000):
            monkeypatch.setattr(fast_csv, "BLOCK", size)
            for limit in (None, 1, 399, 400, 401):
                found = fast_csv.read(Path("w.csv"), io.BytesIO(text.encode()), Layout(NAMES, "s", limit=limit))
                assert list(found) == whole[:limit], (size, limit)
        monkeypatch.undo()
    assert list(readers.read_thoroughly(Path("x"), io.BytesIO(text.encode()), Layout(NAMES, "s"))) == whole


def test_growing_columns():
    table = Growing(["a", "b"], 1)
    for k in range(10):
        table.add({"a": np.arange(k), "b": np.full(k, k)})
    found = table.columns()
    assert found["a"].tolist() == [j for k in range(10) for j in range(k)] and len(found["b"]) == 45


def test_lists_are_read_through_the_same_rules(tmp_path):
    path = tmp_path / "w"
    path.write_text(json.dumps({"at": [1, 2], "in": [3, 4], "out": [5, 6]}))
    assert [r.prompt for r in lists_file.read(path, Layout(NAMES, "ms"))] == [3, 4]


def test_shared_prompts_that_are_written_out():
    run = load(EXAMPLES / "vllm.toml").runs[0]
    assert shared_runs(run.requests)["tokens"] == 3 * 64  # B, C and D begin as A does
    assert shared_runs([replace(request, tokens=None) for request in run.requests]) is None


runs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=4)


@given(st.lists(st.tuples(runs, st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=5))
def test_shared_prompts_are_those_found_token_by_token(drawn):
    requests, whole = [], []
    for place, (prompt, output, segment) in enumerate(drawn):
        prompt = [*prompt, (10 + place, 0, 1)]
        length = sum(run[2] for run in prompt)
        identity = TokenIdentity(tuple(prompt), segment)
        requests.append(Request(str(place), place, length, output, output, tokens=identity))
    expected = 0
    for request in requests:
        told = [(s, k) for s, start, n in request.tokens.prompt for k in range(start, start + n)]
        alike = (
            itertools.takewhile(lambda pair: pair[0] == pair[1], zip(told, other, strict=False)) for other in whole
        )
        expected += max((len(list(pairs)) for pairs in alike), default=0)
        whole.append(told + [(request.tokens.output_segment, k) for k in range(request.output)])
    assert shared_runs(requests)["tokens"] == expected
