"""Small situations in which an engine's rules can be followed by hand. The comments work out what is asserted.

Time is counted in iterations, t0, t1, ..., unless a cost is given. A4 is four prefill tokens of A, A alone a decode.
Every trace is verified as well.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchlab import Limits, Run, Summary, load, simulate
from batchlab.costs.unit import Unit
from batchlab.errors import InputError, SettingError
from batchlab.events import Iteration
from batchlab.policies.orca import Orca
from batchlab.scenario import build
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
UNIT = {"model": "unit"}
PRICES = {"model": "linear", "unit": "cost unit", "prefill_token": 1, "decode_token": 2}


class Played:
    """A run that has ended, its trace verified."""

    def __init__(self, run: Run, path: Path) -> None:
        self.summary = Summary()
        self.steps: list[Iteration] = []
        with path.open("w", encoding="utf-8") as file:
            end = simulate(run, [self.summary, self._keep, TraceWriter(file, self.summary)])
        self.time = end.time
        report = verify(path)
        assert report.ok, report.violations

    def _keep(self, event: object) -> None:
        if isinstance(event, Iteration):
            self.steps.append(event)

    @property
    def batches(self) -> list[str]:
        """`A4 B` for each step: four prefill tokens of A, a decode of B."""
        return [
            " ".join(id + (str(tokens) if phase == "prefill" else "") for id, phase, tokens in step.scheduled)
            for step in self.steps
        ]

    @property
    def padding(self) -> list[int]:
        return [step.padding for step in self.steps]

    @property
    def completed(self) -> dict[str, int]:
        """The iteration with each one's last token."""
        return {id: step.iteration for step in self.steps for id in step.completed}

    @property
    def preempted(self) -> list[tuple[int, str]]:
        return [(step.iteration, entry.id) for step in self.steps for entry in step.preempted]

    @property
    def ended(self) -> list[tuple[int, str, str]]:
        """Who ended without its last token: when, and why."""
        return [(s.iteration, e.id, e.reason) for s in self.steps for e in (*s.rejected, *s.dropped)]


Play = Callable[..., Played]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a policy on requests "A 4+2", with "at 3" for an arrival and "max 9" for a max_tokens."""

    def played(policy: str, *requests: str, cost: dict[str, Any] = UNIT, **settings: Any) -> Played:
        document = {
            "engine": {"policy": policy, **settings},
            "cost": cost,
            "run": {"max_iterations": 1000},
            "workload": {"requests": [_request(text) for text in requests]},
        }
        return Played(build(document).runs[0], tmp_path / "trace.jsonl")

    return played


def _request(text: str) -> dict[str, Any]:
    id, lengths, *rest = text.split()
    prompt, output = map(int, lengths.split("+"))
    options = {key: int(value) for key, value in zip(rest[::2], rest[1::2], strict=True)}
    request = {"id": id, "arrival": options.get("at", 0), "prompt": prompt, "output": output}
    return request | ({"max_tokens": options["max"]} if "max" in options else {})


# Static batching

THREE = ("X 2+1", "Y 2+2", "Z 2+5")


@pytest.mark.parametrize("padding", ["none", "batch", "all"])
def test_static_paddings(play: Play, padding: str) -> None:
    """Two seats: X and Y, then Z. The longest output is 5, so with `all` four steps follow the prefill of each batch.

    all: t0 X2 Y2, t1 Y with X padded, t2 to t4 both padded, t5 Z2, t6 to t9 Z. The cost is 4, then 2 + 2, then
    3 * 2 * 2, then 2, then 4 * 2: 30. It opens two slots in t0 to t4 and one in t5 to t9.
    """
    run = play("static", *THREE, cost=PRICES, max_num_seqs=2, max_num_batched_tokens=8, padding=padding)
    first, second = ["X2 Y2", "Y"], ["Z2", "Z", "Z", "Z", "Z"]
    if padding == "all":
        assert run.batches == [*first, "", "", "", *second]
        assert run.padding == [0, 1, 2, 2, 2, 0, 0, 0, 0, 0]
        assert run.time == 30
        assert run.summary.slots()["opened"] == 5 * 2 + 5
        assert run.steps[2].idle == "padding: every batch runs to the longest output of all"
    else:
        assert run.batches == [*first, *second]
        assert run.padding == [0, 1 if padding == "batch" else 0, 0, 0, 0, 0, 0]
        assert run.time == 4 + 2 * (1 + run.padding[1]) + 2 + 4 * 2
        assert run.summary.slots()["opened"] == 2 * 2 + 5


def test_static_pads_while_a_member_waits_for_its_prefill(play: Play) -> None:
    """A budget of 4: P4, then P and 3 left, too few for Q4, until P has ended with its third token in t2."""
    run = play("static", "P 4+3", "Q 4+1", max_num_seqs=2, max_num_batched_tokens=4, padding="batch")
    assert (run.batches, run.padding) == (["P4", "P", "P", "Q4"], [0, 0, 0, 1])


def test_static_padding_all_waits_for_the_last_arrival(play: Play) -> None:
    """A could start in t0, but B comes in t3. Then both go, though B is the first to end: A 1+3, B 2+1."""
    run = play("static", "A 1+3", "B 2+1 at 3", max_num_batched_tokens=8, padding="all")
    assert run.batches == ["", "", "", "A1 B2", "A", "A"]
    assert run.padding == [0, 0, 0, 0, 1, 1]
    assert run.steps[0].idle == "waiting until all requests have arrived"


# FasterTransformer


def test_fastertransformer_takes_the_longest_less_the_shortest_prompt(play: Play) -> None:
    """max(in + out) - min(in) = 8 - 1 = 7 steps. All start with one token, the shortest prompt.

    A computes 4 prompt tokens by t3 and ends in t6; B has its prompt in t1 and ends in t3; C ends in t1. So one member
    is padded in t2 and t3, two from t4 on. D comes in t1 and is served when all have ended.
    """
    run = play("fastertransformer", "A 4+4", "B 2+3", "C 1+2", "D 1+1 at 1", max_bs=3)
    assert run.batches == ["A1 B1 C1", "A1 B1 C", "A1 B", "A1 B", "A", "A", "A", "D1"]
    assert run.padding == [0, 0, 1, 1, 2, 2, 2, 0]
    assert run.completed == {"A": 6, "B": 3, "C": 1, "D": 7}


def test_fastertransformer_starts_at_the_shortest_prompt_of_the_batch_alone(play: Play) -> None:
    """max_bs = 2 leaves out C, whose prompt is shorter: A and B start with 3 tokens and take 5 + 1 - 3 = 3 steps."""
    run = play("fastertransformer", "A 5+1", "B 3+1", "C 1+1", max_bs=2)
    assert (run.batches, run.padding) == (["A3 B3", "A1", "A1", "C1"], [0, 1, 1, 0])


def test_fastertransformer_needs_max_bs(play: Play) -> None:
    with pytest.raises(InputError, match=r"engine.max_bs"):
        play("fastertransformer", "A 1+1")


# Orca


def test_orca_stops_at_the_first_that_does_not_fit(play: Play) -> None:
    """20 slots: A reserves 8. B needs 16 of the 12 left; C needs 2, but does not pass B. E needs 21 and never fits.

    A ends in t3; t4 has B (16) and C (2).
    """
    run = play("orca", "A 4+4", "B 8+8", "C 1+1", "E 20+1", max_bs=4, n_slots=20)
    assert run.batches[:5] == ["A4", "A", "A", "A", "B8 C1"]
    assert run.steps[0].note == "the first that waits needs more slots than are free"
    assert run.steps[0].kv == {"free": 12, "free_after": 12, "moved": 0}
    assert run.steps[4].kv == {"free": 2, "free_after": 4, "moved": 0}
    assert run.ended == [(0, "E", "prompt + max_tokens exceeds n_slots = 20")]


def test_orca_reserves_by_max_tokens_not_by_output(play: Play) -> None:
    """A may ask for 10 tokens and gives 2: B waits for 2 + 10 slots to be released in t1, while 9 are unused."""
    run = play("orca", "A 2+2 max 10", "B 2+1", max_bs=2, n_slots=12)
    assert run.batches == ["A2", "A", "B2"]


def test_orca_takes_the_earliest_up_to_max_bs(play: Play) -> None:
    """Two a batch: C gets its turn when A or B has ended, and initiation and increment share a batch."""
    run = play("orca", "A 3+1", "B 3+3", "C 4+1", max_bs=2)
    assert run.batches == ["A3 B3", "B C4", "B"]


def test_orca_pipeline_of_two(play: Play) -> None:
    """Each batch takes 4 in two stages of 2. A enters at 0 and leaves at 4, B enters behind it at 2 and leaves at 6.

    A enters again at 4, B at 6; they leave at 8 and 10, where one after the other would have taken 16.
    """
    cost = {"model": "linear", "unit": "cost unit", "prefill_token": 2, "decode_token": 4}
    run = play("orca", "A 2+2", "B 2+2", cost=cost, max_bs=1, n_workers=2)
    assert run.batches == ["A2", "B2", "A", "B", ""]
    assert [step.delivers for step in run.steps] == [None, 0, 1, 2, 3]
    assert [step.end for step in run.steps] == [0, 4, 6, 8, 10]


def test_orca_a_short_batch_does_not_overtake_a_long_one_in_the_pipeline(play: Play) -> None:
    """A takes 12 in two stages of 6: until 6, then 12. B takes 2: its stages are 6 to 7 and 12 to 13."""
    run = play("orca", "A 6+1", "B 1+1", cost=PRICES | {"prefill_token": 2}, max_bs=1, n_workers=2)
    assert [step.end for step in run.steps if step.completed] == [12, 13]


def test_orca_slots_hold_one_token() -> None:
    run = Run(Orca(max_bs=1), Limits(num_gpu_blocks=4), Unit(), [])
    with pytest.raises(SettingError, match="block_size"):
        run.check()


# Sarathi-Serve


def test_sarathi_never_stalls_a_decode(play: Play) -> None:
    """A budget of 4: A's decode goes first in every step, the prompt begun before goes on, a new one gets what is left.

    t1 A and 3 of B's 7, t2 A and 3, t3 A, the last 1 of B and 2 of C's 3, t4 A, B, the last 1 of C.
    """
    run = play("sarathi", "A 2+6", "B 7+2 at 1", "C 3+1 at 1", max_num_seqs=3, token_budget=4)
    assert run.batches == ["A2", "A B3", "A B3", "A B1 C2", "A B C1", "A"]
    assert run.summary.totals()["decode_stalls"] == 0


def test_sarathi_refuses_a_budget_in_which_decodes_would_stall(play: Play) -> None:
    with pytest.raises(InputError, match=r"engine.token_budget: 2: must be at least max_num_seqs = 3"):
        play("sarathi", "A 1+1", max_num_seqs=3, token_budget=2)


# vLLM V0


def test_v0_prefills_first_and_alone(play: Play) -> None:
    """A budget of 8: in t1 B's 4 leave too little for C's 6, in t2 C goes. A stands still in both, and then decodes."""
    run = play("vllm-v0", "A 4+4", "B 4+2 at 1", "C 6+1 at 1", max_num_seqs=3, max_num_batched_tokens=8)
    assert run.batches == ["A4", "B4", "C6", "A B", "A", "A"]


@pytest.mark.parametrize(("watermark", "together"), [(0.2, False), (0.0, True)])
def test_v0_keeps_the_watermark(play: Play, watermark: float, together: bool) -> None:
    """10 blocks of one token: A takes 5; B's 4 would leave 1, and 2 have to stay free. A holds 8 in the end, by t3.

    R's prompt of 9 exceeds 10 - 2, and is refused; with no watermark it fits when all others have ended.
    """
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 20, "block_size": 1, "num_gpu_blocks": 10}
    run = play("vllm-v0", "A 5+4", "B 4+1", "R 9+1", **limits, watermark=watermark)
    if together:
        assert run.batches == ["A5 B4", "A", "A", "A", "R9"]
    else:
        assert run.batches == ["A5", "A", "A", "A", "B4"]
        assert run.ended == [(0, "R", "prompt does not fit the KV cache: at most 8 tokens")]


EIGHT = {"max_num_seqs": 4, "max_num_batched_tokens": 20, "block_size": 1, "num_gpu_blocks": 8, "watermark": 0.0}


def test_v0_preempts_the_latest_arrived_and_recomputes(play: Play) -> None:
    """8 blocks of one token for three requests that grow to 7 each.

    t1: A and B take the last two, C finds none and is the latest itself. t2: A and B hold 4 each. t3: A finds none, B
    has to go. t4: B would need 5 blocks, 3 are free, and C behind it waits too. A ends in t5 with its sixth token.
    t6: B5, its prompt and three tokens, and C3 fit just so. t7: B finds none, C goes again. B ends in t8, C in t12.
    """
    run = play("vllm-v0", "A 2+6", "B 2+6", "C 2+6", **EIGHT)
    assert run.preempted == [(1, "C"), (3, "B"), (7, "C")]
    assert run.batches[:7] == ["A2 B2 C2", "A B", "A B", "A", "A", "A", "B5 C3"]
    assert run.batches[7:] == ["B", "B", "C4", "C", "C", "C"]
    assert run.steps[3].queue == ["B", "C"]
    assert run.completed == {"A": 5, "B": 8, "C": 12}


def test_v0_swaps_in_before_it_prefills_anew(play: Play) -> None:
    """The same three, and D, which comes in t2, after C was swapped out.

    t4, t5: B is first in line and needs 4 blocks and one more, 2 and 1 are free. t6: A has ended; B and C come back
    with 5 and 3 blocks and decode at once. t7: D would need a block, none is free; B needs one too, so C goes, with 3
    blocks. t8: B ends. t9: C comes back, and D waits with 4 free blocks: no prefill while anyone is out. t10: D1.
    """
    run = play("vllm-v0", "A 2+6", "B 2+6", "C 2+6", "D 1+1 at 2", **EIGHT, preemption_mode="swap")
    assert run.preempted == [(1, "C"), (3, "B"), (7, "C")]
    assert run.batches[:7] == ["A2 B2 C2", "A B", "A B", "A", "A", "A", "B C"]
    assert run.batches[7:] == ["B", "B", "C", "D1", "C", "C", "C"]
    moved = {step.iteration: step.kv["moved"] for step in run.steps if step.kv and step.kv["moved"]}
    assert moved == {1: 2, 3: 4, 6: 4 + 2, 7: 3, 9: 3}
    assert run.steps[3].queue == ["B", "C", "D"]


def test_v0_ends_who_can_never_get_its_next_block(play: Play) -> None:
    """8 blocks: A holds all of them in t3 with 5 + 3 tokens and would need a ninth in t4; B is served after it."""
    run = play("vllm-v0", "A 5+9", "B 4+1", **EIGHT)
    assert run.ended == [(4, "A", "KV cache exhausted: a request can hold 8 blocks at most")]
    assert run.batches == ["A5", "A", "A", "A", "", "B4"]


def test_v0_ends_who_has_outgrown_the_watermark(play: Play) -> None:
    """8 blocks, 2 of them stay free at admissions. In t2 A takes B's; it has 5 + 2 tokens to compute again: 7 > 6."""
    run = play("vllm-v0", "A 1+5", "B 5+5", **EIGHT | {"watermark": 0.25})
    reason = "preempted, and what it has to compute again does not fit the KV cache: at most 6 tokens"
    assert run.preempted == [(2, "B")]
    assert run.ended == [(3, "B", reason)]


# Reserving memory for the longest output


@pytest.mark.parametrize(("column", "groups"), [("all_of_max_new", [7] * 9 + [1]), ("bounded", [64])])
def test_what_a_reservation_costs(column: str, groups: list[int], tmp_path: Path) -> None:
    """33,377 slots: 7 * (128 + 4096) = 29,568 fit, 8 times that do not; 64 * (128 + 256) = 24,576 do.

    Each group takes 50 iterations, one for each of its output tokens.
    """
    (run,) = load(EXAMPLES / "reservation.toml", {"workload.columns.max_tokens": column}).runs
    played = Played(run, tmp_path / "trace.jsonl")
    admitted = [(step.iteration, len(step.admitted)) for step in played.steps if step.admitted]
    assert admitted == [(50 * number, size) for number, size in enumerate(groups)]
    assert len(played.steps) == 50 * len(groups)


# A policy keeps nothing from one run to the next


@pytest.mark.parametrize("engine", [{"policy": "static", "padding": "all"}, {"policy": "fastertransformer"}])
def test_a_run_can_be_repeated(engine: dict[str, Any], tmp_path: Path) -> None:
    limits = {"max_num_batched_tokens": 8, "max_num_seqs": 2} if engine["policy"] == "static" else {"max_bs": 2}
    workload = {"requests": [_request(text) for text in (*THREE, "W 1+1 at 2")]}
    run = build({"engine": engine | limits, "cost": UNIT, "run": {"max_iterations": 7}, "workload": workload}).runs[0]
    first, second = (Played(run, tmp_path / name) for name in ("first", "second"))
    assert (first.batches, first.padding) == (second.batches, second.padding)
