"""Generated workloads: the laws of each process and distribution, and the structure of sessions.

Statistical bounds are 4.5 standard errors of the figure under its law: a right generator fails one such check in
147,000. The seeds are fixed, so that a check that passes passes always.
"""

import hashlib
import itertools
import math
import random
import statistics
from pathlib import Path

import numpy as np
import pytest

from batchlab.clients import draws
from batchlab.clients.arrivals import arrival_times
from batchlab.clients.describe import figures
from batchlab.clients.distributions import Distribution
from batchlab.clients.generate import GenerateTable
from batchlab.clients.identity import tokens_of
from batchlab.clients.lengths import values
from batchlab.errors import InputError
from batchlab.metrics.fold import Summary
from batchlab.scenario import build, load
from batchlab.settings import validate
from batchlab.simulation import simulate

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
N = 200_000
ERRORS = 4.5
NS = 10**9


def table(**more):
    basic = {"num_prompts": 10, "seed": 1, "arrivals": "poisson", "request_rate": 5.0, "prompt": 8, "output": 4}
    return validate(GenerateTable, {key: value for key, value in {**basic, **more}.items() if value is not None})


def columns(unit="ns", **more):
    return table(**more).build(Path(), unit)


def drawn(seed=3, count=N, **settings):
    return values(validate(Distribution, settings), draws.Stream(seed, "prompt").uniform(count))


# Exact mathematics


def test_logarithm_exponential_and_normal_are_exact():
    rng = random.Random(1)
    x = np.array([rng.random() * 10.0 ** rng.randint(-300, 300) for _ in range(20_000)] + [1.0, 5e-324, 0.5])
    assert np.allclose(draws.log(x), [math.log(v) for v in x], rtol=4e-16, atol=4e-16)
    x = np.array([rng.uniform(-690, 700) for _ in range(20_000)] + [0.0])
    assert np.allclose(draws.exp(x), [math.exp(v) for v in x], rtol=4e-16, atol=0)
    shares = np.array([rng.random() for _ in range(20_000)] + [10.0**-k for k in range(1, 16)] + [0.075, 0.925, 0.5])
    normal = statistics.NormalDist()
    assert np.allclose(draws.normal(shares), [normal.inv_cdf(v) for v in shares], rtol=4e-15, atol=4e-15)


def test_the_bits_are_those_of_pcg64_and_no_share_is_0_or_1():
    bits = np.random.PCG64(np.random.SeedSequence([9, 0])).random_raw(1000)
    expected = [((int(b) >> 12) + 0.5) / 2**52 for b in bits]
    assert draws.Stream(9, "gaps").uniform(1000).tolist() == expected
    assert 0 < 0.5 / 2**52 and (2**52 - 0.5) / 2**52 < 1


def test_a_seed_gives_these_requests_on_every_machine():
    """Recorded once. All is IEEE arithmetic on PCG64's bits, so that other processors and libraries agree."""
    found = load(ROOT / "examples" / "generated.toml").runs[0].requests
    digest = hashlib.sha256(b"".join(c.astype("<i8").tobytes() for c in (found.arrival, found.prompt, found.output)))
    assert digest.hexdigest() == "a98dca5b34e8c8d862af68fdfd64171e853a3ebea76da9cdb51cc5669d59dfc8"


def test_a_load_worked_out_one_number_after_another():
    """The same in plain Python from PCG64's bits: to the token, and to the nanosecond but for its last rounding."""

    def shares(number):
        bits = np.random.PCG64(np.random.SeedSequence([8, number])).random_raw(3000)
        return [((int(b) >> 12) + 0.5) / 2**52 for b in bits]

    output = {"distribution": "lognormal", "median": 90, "sigma": 1.2, "max": 700, "outside": "clip"}
    prompt = {"distribution": "uniform", "min": 10, "max": 500}
    found = columns(num_prompts=3000, seed=8, prompt=prompt, output=output)
    passed = [0.0, *itertools.accumulate(-math.log(share) for share in shares(0)[:2999])]
    assert np.abs(found.arrival - np.array([round(p / 5 * NS) for p in passed])).max() <= 1
    assert found.prompt.tolist() == [10 + int(share * 491) for share in shares(3)]
    inverse = statistics.NormalDist(math.log(90), 1.2).inv_cdf
    assert found.output.tolist() == [min(max(round(math.exp(inverse(share))), 1), 700) for share in shares(4)]


# Arrival processes


def gaps_of(count=N, unit="ns", **more):
    return np.diff(arrival_times(table(**more), count, unit)).astype(float)


@pytest.mark.parametrize("burstiness", [0.05, 0.25, 0.5, 1.0, 2.5, 10.0])
def test_gamma_gaps_have_their_mean_and_variation(burstiness):
    gaps = gaps_of(arrivals="gamma", burstiness=burstiness) / NS * 5
    cv = 1 / math.sqrt(burstiness)
    assert abs(gaps.mean() - 1) < ERRORS * cv / math.sqrt(N)
    # Standard error of a sample variance: sqrt((kurtosis - 1) / n) * variance; a gamma's kurtosis is 3 + 6 / shape.
    assert abs(gaps.var() * burstiness - 1) < ERRORS * math.sqrt(
        (2 + 6 / burstiness) / N
    ) + 2 * ERRORS * cv / math.sqrt(N)


def test_poisson_gaps_are_exponential():
    gaps = gaps_of() / NS * 5
    assert abs(gaps.mean() - 1) < ERRORS / math.sqrt(N) and abs(gaps.std() / gaps.mean() - 1) < ERRORS * math.sqrt(
        2 / N
    )
    for bound in (0.01, 0.1, 1, 3):
        share = 1 - math.exp(-bound)
        assert abs((gaps < bound).mean() - share) < ERRORS * math.sqrt(share * (1 - share) / N)
    lag = np.corrcoef(gaps[1:], gaps[:-1])[0, 1]
    assert abs(lag) < ERRORS / math.sqrt(N)


def test_gamma_with_burstiness_1_is_exponential_too():
    gaps = np.sort(gaps_of(arrivals="gamma", burstiness=1.0) / NS * 5)
    distance = np.abs(1 - np.exp(-gaps) - (np.arange(len(gaps)) + 0.5) / len(gaps)).max()
    assert distance < 2.23 / math.sqrt(len(gaps))  # Kolmogorov and Smirnov: passed by 1 in 10,000 right ones


def test_constant_and_all_at_once():
    times = arrival_times(table(arrivals="constant", request_rate=3.0), 10, "ns")
    assert times.tolist() == [round(k * NS / 3) for k in range(10)]
    assert arrival_times(table(arrivals="all-at-once", request_rate=None), 3, "ns").tolist() == [0, 0, 0]
    assert arrival_times(table(arrivals="constant", request_rate=0.25), 3, "iteration").tolist() == [0, 4, 8]


def test_on_off_sends_only_while_on_and_keeps_the_mean_rate():
    times = arrival_times(table(arrivals="on-off", on_time=2 * NS, off_time=6 * NS), N, "ns")
    assert (times % (8 * NS) <= 2 * NS).all()
    # Poisson while on: so many arrivals take n / rate, give or take sqrt(n) / rate, and whole periods.
    assert abs(times[-1] / NS * 5 - N) < ERRORS * math.sqrt(N) + 5 * 8
    inside = np.diff(times)[np.diff(times) < 6 * NS] / NS * 20
    assert abs(inside.mean() - 1) < 0.05  # gaps across an off time are left out, which shortens the mean a little


def test_diurnal_follows_its_sine():
    times = arrival_times(table(arrivals="diurnal", period=100 * NS, amplitude=0.8), N, "ns")
    assert abs(times[-1] / NS * 5 - N) < ERRORS * math.sqrt(N) + 500
    phase = times[times < times[-1] // (100 * NS) * (100 * NS)] % (100 * NS) / (100 * NS)
    counts = np.histogram(phase, 20, (0, 1))[0]
    edges = np.linspace(0, 1, 21)
    mass = np.diff(edges - 0.8 / (2 * math.pi) * np.cos(2 * math.pi * edges))
    expected = len(phase) * mass
    assert (np.abs(counts - expected) < ERRORS * np.sqrt(expected)).all()
    quiet = arrival_times(table(arrivals="diurnal", period=100 * NS, amplitude=1.0), 1000, "ns")
    assert (np.diff(quiet) >= 0).all()


@pytest.mark.parametrize(("start", "end"), [(0.0, 10.0), (2.0, 10.0), (10.0, 1.0), (4.0, 4.0)])
def test_ramp_lets_through_the_integral_of_its_rate(start, end):
    times = arrival_times(table(arrivals="ramp", start_rate=start, request_rate=end, ramp_time=2000 * NS), 30_000, "ns")
    seconds = times / NS
    for moment in (500, 1000, 2000, 2500):
        inside = min(moment, 2000)
        expected = start * inside + (end - start) / 2000 * inside**2 / 2 + end * (moment - inside)
        assert abs((seconds < moment).sum() - expected) < ERRORS * math.sqrt(expected) + 2


@pytest.mark.parametrize("more", [{}, {"arrivals": "gamma", "burstiness": 0.3}, {"arrivals": "constant"}])
def test_another_rate_changes_the_scale_of_the_gaps_and_nothing_else(more):
    lognormal = {"distribution": "lognormal", "median": 300, "sigma": 1.0}
    slow = columns(num_prompts=2000, request_rate=2.0, prompt=lognormal, **more)
    fast = columns(num_prompts=2000, request_rate=8.0, prompt=lognormal, **more)
    assert (np.abs(slow.arrival - 4 * fast.arrival) <= 2 + 1e-15 * slow.arrival).all()
    assert (slow.prompt == fast.prompt).all() and (slow.output == fast.output).all()


def test_one_thing_changed_leaves_all_else_as_drawn():
    prompt = {"distribution": "uniform", "min": 1, "max": 99}
    a = columns(num_prompts=500, prompt=prompt, output={"distribution": "exponential", "mean": 50})
    b = columns(num_prompts=500, prompt=prompt, output=7, arrivals="all-at-once", request_rate=None)
    longer = columns(num_prompts=700, prompt=prompt, output={"distribution": "exponential", "mean": 80})
    assert (a.prompt == b.prompt).all() and (a.prompt == longer.prompt[:500]).all()
    assert (a.arrival == longer.arrival[:500]).all() and (a.output <= longer.output[:500]).all()
    other = columns(num_prompts=500, prompt=prompt, seed=2)
    assert (a.prompt != other.prompt).any() and (a.arrival != other.arrival).any()


def test_nothing_is_rescaled_behind_the_users_back():
    """Where the last arrival falls differs from seed to seed, as it does for a Poisson process."""
    ends = [columns(num_prompts=101, seed=seed).arrival[-1] / NS * 5 for seed in range(400)]
    assert abs(np.mean(ends) - 100) < ERRORS * 10 / math.sqrt(400)
    assert abs(np.std(ends) / 10 - 1) < ERRORS / math.sqrt(800) * 1.1


# Lengths


def test_uniform_takes_every_value_alike():
    found = drawn(distribution="uniform", min=3, max=12)
    counts = np.bincount(found, minlength=13)[3:]
    assert found.min() == 3 and found.max() == 12
    assert (np.abs(counts - N / 10) < ERRORS * math.sqrt(N * 0.09)).all()
    assert set(drawn(count=10, distribution="uniform", min=5, max=5)) == {5}


@pytest.mark.parametrize(
    "settings",
    [
        {"median": 500, "sigma": 0.8},
        {"mean": 500 * math.exp(0.32), "sigma": 0.8},
        {"p50": 500, "p90": 500 * math.exp(0.8 * 1.2815515655446004)},
    ],
)
def test_lognormal_said_in_three_ways(settings):
    logs = np.log(drawn(distribution="lognormal", **settings))
    assert abs(logs.mean() - math.log(500)) < ERRORS * 0.8 / math.sqrt(N) + 1e-4  # rounding to whole tokens
    assert abs(logs.std() - 0.8) < ERRORS * 0.8 / math.sqrt(2 * N) + 1e-4


def exponential_mean(mean, cap, how):
    """Mean of max(1, round(Exp(mean))) with a cap, summed over its values."""
    probability = {k: math.exp(-max(k - 0.5, 0) / mean) - math.exp(-(k + 0.5) / mean) for k in range(20_000)}
    inside = sum(p for k, p in probability.items() if k <= cap)
    total = sum(max(k, 1) * p for k, p in probability.items() if k <= cap)
    return total / inside if how == "reject" else total + cap * (1 - inside)


@pytest.mark.parametrize("how", ["clip", "reject"])
@pytest.mark.parametrize("cap", [32, 128, 512, 1536])
def test_a_capped_exponential_has_the_mean_of_its_rule(cap, how):
    found = drawn(distribution="exponential", mean=128, max=cap, outside=how)
    assert found.min() >= 1 and found.max() <= cap
    assert abs(found.mean() - exponential_mean(128, cap, how)) < ERRORS * found.std() / math.sqrt(N)


def test_clipped_and_rejected_differ():
    """Published means of 1,000 lengths of Exp(128) rejected above a cap; each is within 3 standard errors of ours."""
    for cap, published in ((32, 15.9), (128, 52.9), (512, 110.9), (1536, 124.3)):
        rejected = drawn(distribution="exponential", mean=128, max=cap, outside="reject")
        clipped = drawn(distribution="exponential", mean=128, max=cap, outside="clip")
        assert abs(rejected.mean() - published) < 3 * rejected.std() / math.sqrt(1000)
        assert clipped.mean() > rejected.mean() + (0 if cap == 1536 else 1)
        if cap < 512:
            assert abs(clipped.mean() - published) > 3 * clipped.std() / math.sqrt(1000)


@pytest.mark.parametrize("bounds", [(10, 40), (100, 5000), (None, 60), (200, None)])
def test_rejection_is_drawing_again(bounds):
    """Against drawing one after another until one fits."""
    low, high = bounds
    rng = random.Random(5)
    expected = []
    while len(expected) < 20_000:
        value = round(rng.lognormvariate(math.log(100), 1.0))
        if (low is None or value >= low) and (high is None or value <= high):
            expected.append(max(value, 1))
    given = {"min": low, "max": high, "median": 100, "sigma": 1.0, "outside": "reject"}
    found = drawn(distribution="lognormal", **{key: value for key, value in given.items() if value is not None})
    for share in (0.1, 0.5, 0.9):
        other = np.quantile(expected, share)
        assert abs((found <= other).mean() - np.mean(np.array(expected) <= other)) < ERRORS * math.sqrt(0.25 / 20_000)


def test_lengths_from_a_file_keep_their_pairs(tmp_path):
    (tmp_path / "l.csv").write_text("in,out\n" + "".join(f"{10 * k},{k}\n" for k in range(1, 101)))
    lengths = {"file": "l.csv", "format": "csv", "columns": {"prompt": "in", "output": "out"}}
    found = table(num_prompts=50_000, prompt=None, output=None, lengths=lengths).build(tmp_path, "ns")
    assert (found.prompt == 10 * found.output).all()
    counts = np.bincount(found.output, minlength=101)[1:]
    assert (np.abs(counts - 500) < ERRORS * math.sqrt(500)).all()
    lengths["draw"] = "in-order"
    found = table(num_prompts=250, prompt=None, output=None, lengths=lengths).build(tmp_path, "ns")
    assert found.output.tolist() == [*range(1, 101), *range(1, 101), *range(1, 51)]


# Classes and sessions

CHAT = {"name": "chat", "weight": 3, "prompt": 20, "output": 5, "priority": 0, "deadline": 77}
DOCUMENT = {"name": "document", "prompt": 900, "output": 50, "max_tokens": 64}


def test_classes_come_by_weight_with_what_is_theirs():
    found = columns(num_prompts=40_000, prompt=None, output=None, classes=[CHAT, DOCUMENT])
    chats = [request for request in found if request.group == "chat"]
    assert abs(len(chats) / 40_000 - 0.75) < ERRORS * math.sqrt(0.75 * 0.25 / 40_000)
    for request in found[:200]:
        shown = (request.prompt, request.output, request.max_tokens, request.priority, request.deadline)
        assert shown == ((20, 5, 5, 0, 77) if request.group == "chat" else (900, 50, 64, 1, None))
    assert [found[k] for k in range(50)] == list(itertools.islice(found, 50))


def sessions(**more):
    length = {"distribution": "uniform", "min": 5, "max": 60}
    basic = {"turns": {"distribution": "uniform", "min": 1, "max": 6}, "turn_gap": 10**10, "shared_prefix": 32}
    return columns(num_prompts=300, prompt=length, output=length, **{**basic, **more})


def spelled(tokens):
    return [(segment, start + k) for segment, start, length in tokens.prompt for k in range(length)]


def test_a_turns_prompt_is_the_conversation_so_far():
    found = sessions()
    assert (np.diff(found.arrival) >= 0).all() and [r.id for r in found[:3]] == ["0", "1", "2"]
    seen, own = [], set()
    for position, request in enumerate(found):
        tokens = found.tokens(position)
        prompt = spelled(tokens)
        assert len(prompt) == len(set(prompt)) == request.prompt
        assert prompt[:32] == [(0, k) for k in range(32)]
        before = int(found.sessions.previous[position])
        if before >= 0:
            conversation = seen[before] + [
                (found.tokens(before).output_segment, k) for k in range(int(found.output[before]))
            ]
            assert prompt[: len(conversation)] == conversation
            assert found.arrival[position] - found.arrival[before] == 10**10
            new = prompt[len(conversation) :]
        else:
            new = prompt[32:]
        assert new and not own & set(new)
        own |= set(new) | {(tokens.output_segment, k) for k in range(request.output)}
        seen.append(prompt)
        core = tokens_of(found, position, request).runs(0, request.prompt + request.output)
        runs = (*tokens.prompt, (tokens.output_segment, 0, request.output))
        assert core == tuple(number for one in runs for number in one)
    turns = np.bincount(np.bincount(_session_of(found)))
    assert len(turns) == 7 and turns[0] == 0


def _session_of(found):
    session = np.arange(len(found))
    for position, before in enumerate(found.sessions.previous.tolist()):
        if before >= 0:
            session[position] = session[before]
    return np.unique(session, return_inverse=True)[1]


def test_next_prompts_may_have_lengths_of_their_own():
    found = sessions(next_prompt=3, turn_gap=0)
    later = found.sessions.previous >= 0
    assert set(found.sessions.new[later]) == {3} and set(found.sessions.new[~later]) != {3}


def test_the_shared_part_of_sessions_is_what_a_count_by_hand_gives():
    found = sessions()
    known, repeated = set(), 0
    for position, request in enumerate(found):
        tokens = found.tokens(position)
        prompt = spelled(tokens)
        repeated += sum(token in known for token in prompt)
        known |= set(prompt) | {(tokens.output_segment, k) for k in range(request.output)}
    assert figures(found, "ns")["shared"]["tokens"] == repeated


def test_a_prefix_cache_finds_the_conversation():
    """vLLM's rules, blocks of 1 token and ample memory: all that came before is found but each prompt's last token."""
    scenario = {
        "engine": {"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 4096}
        | {"num_gpu_blocks": 2**16, "block_size": 1, "enable_prefix_caching": True},
        "cost": {"model": "linear", "unit": "ns", "per_iteration": 1000},
        "workload": {
            "generate": {"num_prompts": 40, "seed": 3, "arrivals": "constant", "request_rate": 1.0, "shared_prefix": 16}
            | {
                "prompt": {"distribution": "uniform", "min": 5, "max": 40},
                "output": 7,
                "turns": 4,
                "turn_gap": 10**10,
            }
        },
    }
    (run,) = build(scenario).runs
    result = Summary()
    simulate(run, [result])
    found = run.requests
    # The last output token of a turn is never computed: nothing was sampled after it.
    expected = sum(
        int(r.prompt) - int(found.sessions.new[k]) - 1 if found.sessions.previous[k] >= 0 else 16 * (k > 0)
        for k, r in enumerate(found)
    )
    assert result.totals()["cached_tokens"] == expected


# What is refused

WRONG = [
    ({"seed": None}, "generate.seed: is missing"),
    ({"num_prompts": 0}, "generate.num_prompts: 0: must be at least 1"),
    ({"num_prompts": 2**60}, "generate.num_prompts: "),
    ({"seed": -1}, "generate.seed: -1: must be at least 0"),
    ({"arrivals": "weibull"}, "generate.arrivals: 'weibull': 'constant', 'poisson'"),
    ({"request_rate": None}, "generate: arrivals = 'poisson' needs request_rate"),
    ({"request_rate": math.inf}, "generate.request_rate: inf: must be finite; arrivals = 'all-at-once'"),
    ({"request_rate": math.nan}, "generate.request_rate: nan"),
    ({"request_rate": -1}, "generate.request_rate: -1"),
    ({"request_rate": 0}, "generate.request_rate: 0"),
    ({"arrivals": "gamma"}, "arrivals = 'gamma' needs burstiness"),
    ({"burstiness": 0.5}, "burstiness does not go with arrivals = 'poisson', which takes request_rate"),
    ({"arrivals": "all-at-once"}, "request_rate does not go with arrivals = 'all-at-once', which takes no rate"),
    ({"output": None}, "needs prompt and output, or lengths"),
    ({"prompt": 0}, "generate.prompt: 0: must be at least 1"),
    ({"prompt": "8"}, "generate.prompt: '8': must be a table of settings"),
    ({"prompt": 2**63}, "generate.prompt.value: "),
    ({"prompt": {"distribution": "zipf"}}, "generate.prompt.distribution: 'zipf': 'fixed', 'uniform', 'lognormal'"),
    ({"prompt": {"distribution": "uniform", "min": 5}}, "uniform takes min and max, but has min"),
    ({"prompt": {"distribution": "uniform", "min": 5, "max": 4}}, "min = 5 must not be above max = 4"),
    ({"prompt": {"distribution": "uniform", "min": 0, "max": 4}}, "must be at least 1 in every draw"),
    ({"prompt": {"distribution": "exponential", "mean": 5, "max": 9}}, "min and max go with outside = 'clip' or"),
    ({"prompt": {"distribution": "exponential", "mean": math.nan}}, "generate.prompt.mean: nan"),
    ({"prompt": {"distribution": "lognormal", "mean": 5}}, "lognormal takes median and sigma or mean and sigma or p50"),
    ({"prompt": {"distribution": "lognormal", "p50": 5, "p90": 4}}, "p50 = 5 must not be above p90 = 4"),
    ({"prompt": {"distribution": "exponential", "meen": 5}}, "prompt.meen: unknown key (did you mean 'mean'?)"),
    ({"turn_gap": 5}, "turn_gap needs turns"),
    ({"turns": 2}, "turns need one of think_time"),
    ({"turns": 0}, "generate.turns: 0: must be at least 1"),
    ({"classes": [CHAT]}, "output belongs into each of the classes"),
    ({"prompt": None, "output": None, "classes": [CHAT, CHAT]}, "the class 'chat' stands twice"),
    ({"prompt": None, "output": None, "classes": []}, "generate.classes: []"),
    ({"prompt": None, "output": None, "classes": [{"name": "a"}]}, "needs prompt and output, or lengths"),
    ({"max_tokens": 3}, "max_tokens: 3: is below an output that is drawn, 4"),
    ({"request_rate": 1e-9, "num_prompts": 1000}, "the last of 1,000 arrivals lies beyond 2^62 ns"),
    ({"request_rate": 1e-300}, "the last of 10 arrivals lies beyond 2^62 ns"),
    (
        {"arrivals": "diurnal", "request_rate": 5e-324, "period": 1, "amplitude": 1.0},
        "the last of 10 arrivals lies beyond 2^62 ns",
    ),
    ({"arrivals": "constant", "turns": 3, "turn_gap": 2**62}, "a turn could come after 2^62 ns"),
    ({"arrivals": "constant", "turns": 3, "turn_gap": 2**63}, "turn_gap.value: "),
]


@pytest.mark.parametrize(("more", "expected"), WRONG)
def test_what_is_refused(more, expected):
    basic = {"num_prompts": 10, "seed": 1, "arrivals": "poisson", "request_rate": 5.0, "prompt": 8, "output": 4}
    given = {key: value for key, value in {**basic, **more}.items() if value is not None}
    scenario = {
        "engine": {"policy": "chunked", "prefill_chunk": 4, "max_num_batched_tokens": 8},
        "cost": {"model": "linear", "unit": "ns", "per_iteration": 1},
        "workload": {"generate": given},
    }
    with pytest.raises(InputError) as caught:
        build(scenario)
    assert expected in str(caught.value) and str(caught.value).startswith("workload.generate")
    assert "\n" not in str(caught.value)


def test_generate_stands_alone():
    generate = {"num_prompts": 1, "seed": 1, "arrivals": "all-at-once", "prompt": 1, "output": 1}
    for key, other in (("file", "w.csv"), ("requests", []), ("sort", True)):
        with pytest.raises(InputError, match="cannot stand beside"):
            build(
                {
                    "engine": {"policy": "chunked", "prefill_chunk": 4, "max_num_batched_tokens": 8},
                    "cost": {"model": "unit"},
                    "workload": {"generate": generate, key: other},
                }
            )


def test_a_closed_loop_takes_requests_that_stand_alone():
    generate = {"num_prompts": 9, "seed": 1, "arrivals": "all-at-once", "prompt": 1, "output": 1}
    scenario = {
        "engine": {"policy": "chunked", "prefill_chunk": 4, "max_num_batched_tokens": 8},
        "cost": {"model": "unit"},
        "workload": {"generate": generate, "clients": 2},
    }
    result = Summary()
    simulate(build(scenario).runs[0], [result])
    assert result.result_counts() == {"completed": 9} and result.totals()["max_queue_length"] <= 2
    generate |= {"turns": 2, "turn_gap": 5}
    with pytest.raises(InputError, match=r"workload\.clients: 2: would send the turns of a session side by side"):
        build(scenario)
