"""Cost models that look measured times up: profiles, tables, fits."""

import json
import random
import shutil
from heapq import heappop, heappush
from pathlib import Path

import profiles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchlab import costs
from batchlab.core.work import Work
from batchlab.costs.distserve import DistServe
from batchlab.costs.grid import Grid, left_out
from batchlab.costs.linear import Linear
from batchlab.costs.operators import Operators, capture_sizes
from batchlab.costs.waves import Waves, fit_saturation
from batchlab.errors import InputError

pytestmark = pytest.mark.once

SHARED = Path(__file__).resolve().parents[2] / "shared"


def work(chunks: list[tuple[int, int]], contexts: list[int]) -> Work:
    step = Work()
    step.chunks, step.contexts = chunks, contexts
    step.prefill_tokens, step.decode_tokens = sum(t for t, _ in chunks), len(contexts)
    step.prefill_context = sum(t + before for t, before in chunks)
    step.context_tokens = step.prefill_context + sum(contexts)
    return step


def build(folder: Path, **settings: object) -> costs.CostModel:
    section = {"model": "operators", "profile": "p", "layers": 3, **settings}
    return costs.build({key: value for key, value in section.items() if value is not None}, folder)


# The grid

sizes = st.tuples(st.integers(0, 1024), st.integers(0, 4096), st.integers(0, 256), st.integers(16, 8192))


@given(st.lists(sizes, min_size=1, max_size=30), st.integers(0, 2**32))
def test_a_ragged_grid_is_exact_for_what_is_linear_in_each_size(queries: list[tuple[int, ...]], seed: int) -> None:
    """Also where inner points were never measured: they are filled from their neighbours."""
    chosen = random.Random(seed)
    known = profiles.points()
    inner = [p for p in known if p[0] in (64, 256) and p[1] in (0, 64, 512) and p[2] == 16]
    for point in chosen.sample(inner, 5):
        del known[point]
    grid = Grid(known)
    for q, k, n, c in queries:
        if q or n:
            expected = profiles.attention(q, k if q else 0, n, c if n else 0)
            assert grid(q, k, n, c) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_grid_gives_back_what_was_measured_and_goes_on_along_the_last_line() -> None:
    chosen = random.Random(3)
    known = {point: chosen.uniform(1, 100) for point in profiles.points()}
    grid = Grid(known)
    assert all(grid(*point) == pytest.approx(time) for point, time in known.items())
    line = {(0.0, 0.0, n, 16.0): t for n, t in ((1.0, 3.0), (2.0, 4.0), (4.0, 8.0))}
    assert Grid(line)(0, 0, 8, 16) == pytest.approx(16)
    assert Grid({(0.0, 0.0, 1.0, 16.0): 5.0})(0, 0, 7, 99) == 5.0


def test_points_that_make_no_grid_are_refused() -> None:
    scattered = {(float(i), float(i), float(i), float(i)): 1.0 for i in range(50)}
    with pytest.raises(ValueError, match="no grid"):
        Grid(scattered)


def test_leaving_one_out_of_what_is_linear_misses_nothing() -> None:
    for pairs in left_out(profiles.points()):
        assert len(pairs) > 50
        assert [found for found, _ in pairs] == pytest.approx([measured for _, measured in pairs])
    bent = {(0.0, 0.0, n, 16.0): n * n for n in (1.0, 2.0, 3.0)}
    assert left_out(bent) == [[], [], [(5.0, 4.0)], []]


# Unequal contexts


def played(contexts: list[float], slots: int, kv_heads: int, enough: float) -> float:
    """Thread blocks event by event: all active ones run at one rate, min(1, enough / active)."""
    queue = [c for _ in range(kv_heads) for c in contexts]
    active: list[float] = []
    time = work_done = 0.0
    while queue or active:
        while queue and len(active) < slots:
            heappush(active, work_done + queue.pop(0))
        end = active[0]
        time += (end - work_done) / min(1.0, enough / len(active))
        work_done = end
        while active and active[0] <= work_done:
            heappop(active)
    return time


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 8),
    st.floats(0.05, 1.0),
)
def test_blocks_on_slots_end_as_if_played_event_by_event(
    contexts: list[int], sms: int, kv_heads: int, saturation: float
) -> None:
    waves = Waves(sms, kv_heads, saturation)
    expected = played([float(c) for c in contexts], waves.slots, kv_heads, saturation * waves.slots)
    assert waves.makespan(contexts) == pytest.approx(expected)
    assert waves.makespan([2 * c for c in contexts]) == pytest.approx(2 * expected)


def test_penalty_is_one_for_equal_contexts_and_while_the_kernel_splits() -> None:
    waves = Waves(10, 2, 0.5)  # 20 slots; splits below 16 blocks
    assert waves.penalty([300] * 12) == pytest.approx(1)
    assert waves.penalty([4000] + [100] * 6) == 1
    assert waves.penalty([4000] + [100] * 9) > 1.3


def test_the_saturation_that_made_the_measurements_is_found() -> None:
    truth = Waves(64, 8, 0.23)
    chosen = random.Random(5)
    measured = []
    for count in (16, 20, 32, 64):
        for _ in range(8):
            contexts = [float(chosen.randint(100, 4000)) for _ in range(count)]
            mean = sum(contexts) / count
            measured.append((contexts, truth.makespan(contexts) / truth.makespan([mean] * count)))
    found, error = fit_saturation(measured, 64, 8)
    assert found == pytest.approx(0.23) and error < 1e-9
    with pytest.raises(ValueError, match="enough decodes"):
        fit_saturation([([100.0, 400.0], 1.1)], 64, 8)


# Operators


def expected_us(layers: int, tokens: int, sequences: int, attention: float) -> float:
    layer, once = profiles.dense_us(tokens)
    last = 20 + 2.5 * sequences
    return layers * (layer + attention) + once + last


def test_a_step_is_the_sum_of_its_operators(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    plain = build(tmp_path, cuda_graphs=0, tiles=False)
    a = profiles.attention
    for chunks, contexts in (
        ([], [100, 300]),
        ([(200, 0)], []),
        ([(700, 1000)], [50] * 20),
        ([(30, 0), (500, 64)], [900] * 100),
    ):
        q = sum(t for t, _ in chunks)
        n, c = len(contexts), sum(contexts) / max(len(contexts), 1)
        if len(chunks) < 2:
            attention = a(q, chunks[0][1] if chunks else 0, n, c)
        else:  # as written in the facts: the sum together, corrected by the single ones
            weighted, mean = sum(t * k for t, k in chunks) / q, sum(k for _, k in chunks) / len(chunks)
            least = a(16, 0, 0, 0)
            attention = (
                a(q, weighted, n, c) + sum(a(t, k, 0, 0) - least for t, k in chunks) - (a(q, mean, 0, 0) - least)
            )
        expected = expected_us(3, q + n, len(chunks) + n, attention)
        assert plain.duration(work(chunks, contexts)) == pytest.approx(1000 * expected, abs=1)


def test_graphs_pad_tokens_and_tiles_round_them_up(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    attention = profiles.attention(0, 0, 9, 100)
    contexts = [100] * 9
    padded = build(tmp_path, tiles=False).duration(work([], contexts))
    assert padded == pytest.approx(1000 * expected_us(3, 16, 9, attention), abs=1)  # 9 is captured as 16
    tiled = build(tmp_path, cuda_graphs=0).duration(work([], contexts))
    layer, once = profiles.dense_us(16)
    assert tiled == pytest.approx(1000 * (3 * (layer + attention) + once + 20 + 2.5 * 64), abs=1)  # 9 sequences as 64
    assert capture_sizes(512)[:5] == [1, 2, 4, 8, 16] and capture_sizes(512)[-2:] == [496, 512]
    assert len(capture_sizes(512)) == 51 and capture_sizes(0) == []


def test_unequal_contexts_cost_more_by_the_penalty(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    both = [
        build(tmp_path, cuda_graphs=0, tiles=False, unequal_contexts=on, sms=8, kv_heads=2, saturation=0.3)
        for on in (True, False)
    ]
    contexts = [4000] + [100] * 15
    mean = sum(contexts) / 16
    more = 3 * (Waves(8, 2, 0.3).penalty(contexts) - 1) * profiles.attention(0, 0, 16, mean)
    for chunks in ([], [(64, 0)]):
        with_term, without = (model.duration(work(chunks, contexts)) for model in both)
        assert more > 1 and with_term - without == pytest.approx(1000 * more, abs=2)


def test_gpus_exchange_and_share_experts(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    profiles.write(tmp_path / "links.csv", "bytes,time_us", [(1000, 5), (1000000, 1004)])
    tp = {"tensor_parallel": 2, "hidden_size": 100, "collectives": "links.csv"}
    plain, two = build(tmp_path, cuda_graphs=0, tiles=False), build(tmp_path, cuda_graphs=0, tiles=False, **tp)
    step = work([(50, 0)], [])  # 10,000 bytes: 14 us, twice a layer and once
    assert two.duration(step) - plain.duration(step) == pytest.approx(1000 * 7 * 14, abs=50)
    rows = [(t, e, 1 + 0.1 * t + e) for t in (1, 64, 1024) for e in (0, 32, 64)]
    profiles.write(tmp_path / "p" / "moe.csv", "tokens,experts,time_us", rows)
    shared = build(tmp_path, cuda_graphs=0, tiles=False, experts=128, experts_per_token=8, expert_parallel=2, **tp)
    hit = 64 * (1 - (1 - 8 / 128) ** 100)  # both GPUs' 50 tokens are gathered
    more = 3 * (1 + 5 + hit) + 3 * (5 + 999 * (20000 - 1000) / 999000)
    assert shared.duration(step) - two.duration(step) == pytest.approx(1000 * more, rel=1e-3)


def test_what_the_catalog_knows_need_not_be_given(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    skew = [(64, 1, 0, 100, big, 100, 100 + big / 100) for big in (400, 800, 1600)]
    profiles.write(tmp_path / "p" / "skew.csv", "n,nb,pc,kvs,kv_big,t_mean_us,t_skew_us", skew)
    profiles.write(tmp_path / "links.csv", "bytes,time_us", [(1000, 5), (1000000, 1004)])
    own = {"tensor_parallel": 2, "collectives": "links.csv", "unequal_contexts": True}
    known = {"layers": None, "llm": "llama-3.1-8b", "gpu": "h100-sxm"}
    shape = {"layers": 32, "kv_heads": 4, "hidden_size": 4096, "sms": 132}  # 8 KV heads over two GPUs
    step = work([(50, 0)], [100] * 70 + [5000])
    named, given = build(tmp_path, **own, **known), build(tmp_path, **own, **shape)
    assert named.duration(step) == given.duration(step)
    assert named.describe() == given.describe() | {"llm": "llama-3.1-8b", "gpu": "h100-sxm"}
    assert build(tmp_path, **own, **known | {"layers": 3, "sms": 100}).describe()["sms"] == 100
    config = {"num_hidden_layers": 5, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 128}), encoding="utf-8")
    assert build(tmp_path, layers=None, llm="config.json").describe()["layers"] == 5


def test_experts_come_from_the_catalog_where_the_profile_has_them(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    llm = {"layers": None, "llm": "qwen3-30b-a3b"}
    with pytest.raises(InputError, match="has experts, of which the profile needs a moe"):
        build(tmp_path, **llm)
    rows = [(t, e, 1 + 0.1 * t + e) for t in (1, 64, 1024) for e in (0, 32, 64, 128)]
    profiles.write(tmp_path / "p" / "moe.csv", "tokens,experts,time_us", rows)
    step = work([(50, 0)], [])
    named, given = build(tmp_path, **llm), build(tmp_path, layers=48, experts=128, experts_per_token=8)
    assert named.duration(step) == given.duration(step)
    with pytest.raises(InputError, match="has experts in 58 of 61 layers"):
        build(tmp_path, layers=None, llm="deepseek-v3")


def test_unequal_contexts_are_in_where_all_is_known_that_they_need(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    known = {"sms": 8, "kv_heads": 2}
    assert build(tmp_path, **known).describe()["unequal_contexts"] is False  # no skew.csv
    skew = [(64, 1, 0, 100, big, 100, 100 + big / 100) for big in (400, 800, 1600)]
    profiles.write(tmp_path / "p" / "skew.csv", "n,nb,pc,kvs,kv_big,t_mean_us,t_skew_us", skew)
    on, off, half = build(tmp_path, **known), build(tmp_path, unequal_contexts=False, **known), build(tmp_path, sms=8)
    assert on.describe() == build(tmp_path, unequal_contexts=True, **known).describe()
    step = work([], [100] * 40 + [4000])
    assert on.duration(step) > off.duration(step) == half.duration(step)
    assert on.remarks() == off.remarks() == []
    (told,) = half.remarks()
    assert "kv_heads not given" in told
    many = {"sms": 500, "kv_heads": 2}
    assert "no batch of skew.csv fills the GPU" in build(tmp_path, **many).remarks()[0]
    with pytest.raises(InputError, match=r"skew\.csv: none of its batches fills the GPU"):
        build(tmp_path, unequal_contexts=True, **many)


def test_gpus_exchange_over_pcie_unless_told_otherwise(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    two = {"tensor_parallel": 2, "hidden_size": 5000}
    silent, given = build(tmp_path, **two), build(tmp_path, **two, collectives="pcie")
    assert silent.describe() == given.describe() and "as over PCIe" in silent.remarks()[0] and not given.remarks()
    plain = build(tmp_path)
    step = work([(400, 0)], [])  # 4 MB: 292 us
    assert silent.duration(step) - plain.duration(step) == pytest.approx(1000 * 7 * 292, abs=1)


def test_engines_that_share_experts_take_the_longest_and_all_their_tokens(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    rows = [(t, e, 1 + 0.1 * t + e) for t in (1, 64, 1024) for e in (0, 32, 64)]
    profiles.write(tmp_path / "p" / "moe.csv", "tokens,experts,time_us", rows)
    profiles.write(tmp_path / "links.csv", "bytes,time_us", [(1000, 5), (1000000, 1004)])
    moe = {"experts": 128, "experts_per_token": 8, "hidden_size": 100, "collectives": "links.csv"}
    model = build(tmp_path, cuda_graphs=0, tiles=False, expert_parallel=2, **moe)
    long, short = work([(500, 0)], []), work([], [1000] * 20)
    assert model.together([short, long]) == model.together([long, short])
    layer, once = profiles.dense_us(500)
    own = 3 * (layer + profiles.attention(500, 0, 0, 0)) + once + 22.5
    hit = 64 * (1 - (1 - 8 / 128) ** 520)
    shared = 3 * (1 + 0.1 * 260 + hit) + 3 * (5 + 999 * (520 * 200 - 1000) / 999000)
    assert model.together([long, short]) == pytest.approx(1000 * (own + shared), rel=1e-4)
    assert model.together([long, long]) == model.duration(long)
    assert model.together([long, None]) < model.together([long, short])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": None}, "cost.layers: is missing: give it, or the model as llm"),
        ({"llm": "llama-3.1-9b"}, "cost.llm: 'llama-3.1-9b': no such model"),
        ({"gpu": "h100-smx"}, "cost.gpu: 'h100-smx': no such GPU"),
        ({"gpu": "l4", "kv_heads": 8, "unequal_contexts": True}, "cost.sms: is missing: unequal_contexts needs it"),
        (
            {"tensor_parallel": 2, "hidden_size": 8, "collectives": "pci"},
            "cost.collectives: 'pci': must be 'pcie', or a .csv file of all-reduce times (did you mean 'pcie'?)",
        ),
    ],
)
def test_what_is_missing_is_told_with_what_would_give_it(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    profiles.make(tmp_path / "p")
    with pytest.raises(InputError) as caught:
        build(tmp_path, **settings)
    assert str(caught.value).startswith(message)


def test_a_step_beyond_the_profile_is_counted_and_told(tmp_path: Path) -> None:
    profiles.make(tmp_path / "p")
    model = build(tmp_path)
    model.duration(work([(100, 0)], []))
    assert model.remarks() == []
    model.duration(work([(4000, 0)], []))
    model.duration(work([], [100000]))
    assert model.remarks() == ["2 of 3 steps lie outside the profile; their times are extrapolated"]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("dense.csv", "embedding,2,", "embedding,2,nan", "line 3, time_us: 'nan1.02': must be a number"),
        ("dense.csv", "embedding,2,1.02", "embedding,2,nan", "line 3, time_us: 'nan': must be a number from 0 to 2^40"),
        ("dense.csv", "embedding,2,1.02", "embedding,2,-1", "line 3, time_us: '-1': must be a number from 0 to 2^40"),
        ("dense.csv", "embedding,2,1.02", "embedding,2,0", "line 3, time_us: 0.0: must be above 0"),
        ("dense.csv", "embedding,2,", "embedding,1.5,", "line 3, tokens: 1.5: must be a whole number, at least 1"),
        ("dense.csv", "embedding,2,", "embedding,1,", "line 3: 1: a second time for this embedding at these tokens"),
        ("dense.csv", "tokens", "token", "line 1: has no column 'tokens' (did you mean 'token'?)"),
        ("attention.csv", "0,0,1,256,", "0,0,1,16,", "line 3: measured twice (prefill_chunk 0"),
        ("attention.csv", "0,0,1,256,", "0,0,1,1e300,", "line 3, kv_decode: '1e300': must be a number from 0 to 2^40"),
        ("attention.csv", "0,0,1,16,0.316", "0,0,1,16,0", "line 2, time_us: 0.0: must be above 0"),
        ("attention.csv", "0,0,1,16,0.316", "0,0,1,16,9", "line 19, time_us: 0.6370112000000001: falls by 93 %"),
        (
            "dense.csv",
            "embedding,2,1.02",
            "embedding,2,4",
            "line 4, time_us: 1.04: falls by 74 % from the 4 of line 3 at",
        ),
        ("per_sequence.csv", "lm_head,8,26.0", "lm_head,8", "line 3: 'lm_head,8': must have 3 cells"),
    ],
)
def test_a_bad_profile_is_told_by_file_and_row(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    path = profiles.make(tmp_path / "p") / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        build(tmp_path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "cost.layers: 0: must be at least 1"),
        ({"layer": 3}, "cost.layer: unknown key (did you mean 'layers'?)"),
        ({"profile": "q"}, "q: no such folder"),
        ({"unequal_contexts": True}, "cost.sms: is missing: unequal_contexts needs it"),
        ({"unequal_contexts": True, "sms": 8, "kv_heads": 2}, "skew.csv: cannot be read"),
        ({"unequal_contexts": True, "sms": 8, "kv_heads": 2, "saturation": 2.0}, "cost.saturation: 2.0: must be"),
        ({"tensor_parallel": 2}, "cost.hidden_size: is missing: more than one GPU needs it"),
        ({"experts": 8, "experts_per_token": 2}, "cost.experts: 8: has no use"),
        ({"cuda_graphs": -1}, "cost.cuda_graphs: -1: must be the largest captured batch size, or 0"),
    ],
)
def test_bad_settings_are_told(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    profiles.make(tmp_path / "p")
    with pytest.raises(InputError) as caught:
        build(tmp_path, **settings)
    assert message in str(caught.value)


def test_a_missing_file_of_a_profile_is_named(tmp_path: Path) -> None:
    (profiles.make(tmp_path / "p") / "attention.csv").unlink()
    with pytest.raises(InputError, match=r"attention\.csv: cannot be read"):
        build(tmp_path)


# Tables and DistServe's fit


def table(
    folder: Path, rows: list[tuple[object, ...]], header: str = "prefill_tokens,decodes,time_us"
) -> costs.CostModel:
    profiles.write(folder / "steps.csv", header, rows)
    return costs.build({"model": "table", "file": "steps.csv"}, folder)


def test_a_table_gives_its_points_and_lines_between(tmp_path: Path) -> None:
    rows = [(128, 0, 48_000), (512, 0, 105_000), (0, 1, 46_000), (0, 4, 49_000)]
    model = table(tmp_path, rows)
    assert model.duration(work([(512, 77)], [])) == 105_000_000
    assert model.duration(work([(320, 0)], [])) == 76_500_000
    assert model.duration(work([], [9, 9])) == 47_000_000
    assert model.remarks() == []
    model.duration(work([(1024, 0)], []))
    assert model.remarks() == ["1 of 4 steps lie outside steps.csv; their times are extrapolated"]
    assert model.duration(work([(512, 0)], [9])) == 151_000_000  # no such step was measured
    assert model.remarks()[1] == "1 of 5 steps mix prefill and decode, which steps.csv does not: both times are added"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [(128, 0, 48_094), (256, 0, 121_353), (512, 0, 105_581)],  # Yi-34B on two A100: a warm-up at 256
            "line 4, time_us: 105581.0: falls by 13 % from the 121353 of line 3 at a smaller prefill_tokens",
        ),
        ([(128, 0, 48_094)], "one step is no table: at least 2 are needed"),
        ([(128, 0, 1), (0, 0, 1)], "line 3: neither prefill_tokens nor decodes: the step is empty"),
        ([(128, 0, 1), (128, 0, 2)], "line 3: this step was measured on line 2 too"),
        ([(128, 0, 0), (256, 0, 2)], "line 2, time_us: 0.0: must be above 0"),
        ([], "line 2: has no rows"),
    ],
)
def test_a_bad_table_is_told_by_row(tmp_path: Path, rows: list[tuple[object, ...]], message: str) -> None:
    with pytest.raises(InputError) as caught:
        table(tmp_path, rows)
    assert str(caught.value).startswith(f"{tmp_path / 'steps.csv'}: {message}")


def test_distserves_fit() -> None:
    """OPT-13B on one A100, coefficients as published; the sums done by hand."""
    model = costs.build(
        {
            "model": "distserve",
            "prefill": [22.052204789310185, 0.14050923870128956, 8.076584822611088e-06],
            "decode": [23.475041008414784, 0.000592934466077393, 0.060726861260369455],
            "decode_large": [20.206356173691958, 0.0004907727036234946, 0.1200031385587413],
            "threshold": 95,
        }
    )
    assert model.duration(work([(512, 0)], [])) == pytest.approx(96_110_163, abs=1000)
    assert model.duration(work([], [600] * 10)) == pytest.approx(27_639_916, abs=1000)
    assert model.duration(work([], [600] * 100)) == pytest.approx(61_653_032, abs=1000)
    halves = model.duration(work([(256, 0)], [])) + model.duration(work([(256, 256)], []))
    assert halves - model.duration(work([(512, 0)], [])) == pytest.approx(22_052_205, abs=2)  # a twice, squares once
    assert model.remarks() == []
    model.duration(work([(512, 0)], [600]))
    assert model.remarks() == ["1 of 7 steps mix prefill and decode, which the fit does not know"]
    for bad in ({"prefill": [1.0, 2.0]}, {"prefill": [1.0, 2.0, float("nan")]}, {"threshold": 3}):
        settings = {"model": "distserve", "prefill": [1.0, 0.0, 0.0], "decode": [1.0, 0.0, 0.0], **bad}
        with pytest.raises(InputError, match=r"cost\."):
            costs.build(settings)


def test_a_fit_of_distserve_that_gives_no_time_says_so() -> None:
    cost = DistServe([-5.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    work = Work()
    work.prefill_tokens = work.context_tokens = work.prefill_context = 8
    work.chunks = [(8, 0)]
    assert cost.duration(work) == 1
    assert cost.remarks() == ["1 of 1 steps take no time by this fit, and 1 ns here"]
    with pytest.raises(InputError, match="threshold: 0: must be a batch of at least 1"):
        DistServe([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], 0)


@pytest.mark.parametrize("section", [{"model": "table", "file": ""}, {"model": "operators", "profile": ""}])
def test_a_file_without_a_name_is_none(section: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must not be empty"):
        costs.build(section)


def test_a_cost_from_another_file(tmp_path: Path) -> None:
    profiles.make(tmp_path / "sub" / "p")
    (tmp_path / "sub" / "c.toml").write_text('[cost]\nmodel = "operators"\nprofile = "p"\nlayers = 3\n')
    found = costs.build({"from": "sub/c.toml"}, tmp_path)
    shutil.copytree(tmp_path / "sub" / "p", tmp_path / "p")
    step = work([(100, 0)], [40, 50])
    assert found.duration(step) == build(tmp_path).duration(step)
    for section, message in (
        ({"from": "nothing.toml"}, "nothing.toml: cannot be read"),
        ({"from": "sub/c.toml", "layers": 3}, "cost.from: 'sub/c.toml': must be the only key"),
    ):
        with pytest.raises(InputError, match=message):
            costs.build(section, tmp_path)


def test_a_fitted_line_tells_when_it_is_left() -> None:
    section = {"model": "linear", "unit": "ns", "per_iteration": 5, "fitted": {"decodes": [0, 4]}}
    model = costs.build(section)
    assert isinstance(model, Linear)
    for count in (1, 4, 5, 9):
        model.duration(work([], [10] * count))
    assert model.remarks() == ["2 of 4 steps lie outside the fitted decodes, 0 to 4"]
    for bad, message in (({"decode": [0, 4]}, "did you mean 'decodes'"), ({"decodes": [4, 0]}, "lowest, highest")):
        with pytest.raises(InputError, match=message):
            costs.build({**section, "fitted": bad})


@pytest.mark.skipif(not (SHARED / "measured").is_dir(), reason="the measurements are not here")
def test_real_profiles_load_and_the_saturation_stays_what_the_page_says() -> None:
    for name, sms, kv_heads, expected in (
        ("rtx4090-llama-3.1-8b-bf16-tp1", 128, 8, 0.18),
        ("rtxpro6000-llama-3.1-8b-bf16-tp1", 188, 8, 0.13),
        ("rtxpro6000-qwen3-32b-bf16-tp2", 188, 4, 0.12),
    ):
        model = Operators(
            str(SHARED / "measured" / "op-profiles" / name), 32, unequal_contexts=True, sms=sms, kv_heads=kv_heads
        )
        assert model.describe()["saturation"] == pytest.approx(expected, abs=0.011)
        assert 0 < model.duration(work([], [700] * 64)) < model.duration(work([(2000, 0)], [700] * 64))
