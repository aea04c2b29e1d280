"""The simulator as a queue: against Lindley's recursion, closed formulas of queueing theory, and Little's law.

One seat is one server. A prompt of one token and iterations of constant duration make a request's service so many
iterations as it has output tokens: constant for M/D/1, exponential, rounded to whole iterations, for M/M/1 and M/M/c.
"""

from math import exp, factorial

import numpy as np
import pytest

from batchlab.events import Iteration
from batchlab.metrics.answers import answers, question
from batchlab.metrics.fold import Summary
from batchlab.metrics.part import part_of
from batchlab.metrics.window import steady_window
from batchlab.scenario import build
from batchlab.seeds import over_seeds
from batchlab.simulation import simulate

ITERATION = 1_000_000  # ns


def queue(count, seats, load, output, seed, mean=None, policy="vllm"):
    """A run in which `seats` servers are busy for this share of the time."""
    mean = output if mean is None else mean
    rate = load * seats * 1e9 / (mean * ITERATION)
    document = {
        "engine": {"policy": policy, "max_num_seqs": seats, "max_num_batched_tokens": 64},
        "cost": {"model": "linear", "unit": "ns", "per_iteration": ITERATION},
        "workload": {
            "generate": {
                "num_prompts": count,
                "seed": seed,
                "arrivals": "poisson",
                "request_rate": rate,
                "prompt": 1,
                "output": output,
            }
        },
    }
    [run] = build(document).runs
    return run


def run_of(run):
    summary = Summary()
    simulate(run, [summary])
    return summary


def mean_wait(summary):
    """Mean time in the queue, in iterations."""
    return summary.document(with_requests=False)["latency"]["queue_time"]["mean"] / ITERATION


def exponential(mean):
    return {"distribution": "exponential", "mean": mean}


def rounded_exponential(mean):
    """First two moments of an exponential that is rounded to the nearest whole number, at least 1."""
    edge = exp(-1 / mean)
    numbers = np.arange(1, 60 * mean)
    share = exp(0.5 / mean) * (1 - edge) * edge**numbers
    share[0] += 1 - exp(-0.5 / mean)
    assert share.sum() == pytest.approx(1)
    return float((numbers * share).sum()), float((numbers**2 * share).sum())


@pytest.mark.parametrize("output", [1, 7, exponential(20)], ids=["D1", "D7", "M"])
def test_one_server_is_lindleys_recursion(output):
    """Wait of the next = max(0, wait + service - gap), request by request, to the nanosecond."""
    run = queue(3000, 1, 0.85, output, seed=3, mean=20 if isinstance(output, dict) else None)
    summary = run_of(run)
    waits, wait = [], 0
    arrival, service = run.requests.arrival.tolist(), (run.requests.output * ITERATION).tolist()
    for position in range(len(arrival)):
        if position:
            wait = max(0, wait + service[position - 1] - (arrival[position] - arrival[position - 1]))
        waits.append(wait)
    assert (np.asarray(summary.tally.first_scheduled) - run.requests.arrival).tolist() == waits
    assert max(waits) > 10 * ITERATION


def seats_by_hand(arrival, service, seats):
    """Begin of each request on a machine whose iterations carry up to so many requests, step by step."""
    now, left, begun, queue, sent = 0, {}, {}, [], 0
    while len(begun) < len(arrival) or left:
        if not left and not queue:
            now = max(now, arrival[sent])
        while sent < len(arrival) and arrival[sent] <= now:
            queue.append(sent)
            sent += 1
        while queue and len(left) < seats:
            chosen = queue.pop(0)
            begun[chosen], left[chosen] = now, service[chosen]
        now += ITERATION
        left = {one: steps - 1 for one, steps in left.items() if steps > 1}
    return [begun[position] for position in range(len(arrival))]


def test_several_servers_by_hand():
    run = queue(400, 3, 0.9, exponential(12), seed=8, mean=12)
    summary = run_of(run)
    expected = seats_by_hand(run.requests.arrival.tolist(), run.requests.output.tolist(), 3)
    assert np.asarray(summary.tally.first_scheduled).tolist() == expected


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_d_1(load):
    """Mean wait = rho S / (2 (1 - rho)), Pollaczek and Khinchine with constant service."""
    found = over_seeds(lambda seed: queue(20_000, 1, load, 1, seed), range(10), lambda s: {"wait": mean_wait(s)})
    formula = load / (2 * (1 - load))
    assert found["wait"].holds(formula), (found["wait"], formula)
    assert found["wait"].half_width < 0.05 * formula  # narrow enough to say something
    assert not found["wait"].holds(2 * formula)  # M/M/1


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_m_m_1(load):
    """Mean wait = rho S / (1 - rho), and exactly lambda E[S^2] / (2 (1 - rho)) with the rounded lengths' moments."""
    first, second = rounded_exponential(40)
    found = over_seeds(
        lambda seed: queue(8_000, 1, load, exponential(40), seed, mean=first),
        range(10),
        lambda s: {"wait": mean_wait(s)},
    )
    exact, formula = load / first * second / (2 * (1 - load)), load * 40 / (1 - load)
    assert exact == pytest.approx(formula, rel=0.002)
    assert found["wait"].holds(exact) and found["wait"].holds(formula), (found["wait"], exact, formula)
    assert found["wait"].half_width < 0.1 * formula


def erlang_c(seats, load):
    """The probability that all servers are busy."""
    offered = seats * load
    busy = offered**seats / factorial(seats) / (1 - load)
    return busy / (sum(offered**k / factorial(k) for k in range(seats)) + busy)


def test_erlang_c_itself():
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 0.5) == pytest.approx(1 / 3)  # by hand: 2 rho^2 / (1 + rho)


@pytest.mark.parametrize(("seats", "load"), [(2, 0.7), (8, 0.85)])
def test_m_m_c(seats, load):
    """Mean wait = C(c, rho) S / (c (1 - rho)); an arrival amid an iteration waits for its end, half of one on average,
    where a seat is free and the engine runs: between no and all of that is added."""
    mean = 40
    first, _ = rounded_exponential(mean)
    found = over_seeds(
        lambda seed: queue(8_000, seats, load, exponential(mean), seed, mean=first),
        range(10),
        lambda s: {"wait": mean_wait(s)},
    )["wait"]
    formula = erlang_c(seats, load) * mean / (seats * (1 - load))
    nearest = min(max(found.mean, formula), formula + 0.5)
    assert found.holds(nearest), (found, formula)
    assert found.half_width < 0.15 * formula


def test_an_interval_holds_the_truth_as_often_as_it_says():
    """Of 100 batch-means intervals of one run each about 95. Were it exactly that, fewer than 87 would happen once in a
    thousand times, and all of them once in 170."""
    load, held = 0.5, 0
    formula = load / (2 * (1 - load)) * ITERATION
    for seed in range(100):
        summary = run_of(queue(8_000, 1, load, 1, 100 + seed))
        found = answers(summary, question("ns", None, (), "steady"))
        held += abs(found["latency"]["queue_time"]["mean"] - formula) <= found["intervals"]["queue_time"]["mean"]
    assert 87 <= held < 100


class Levels:
    """How many are waiting or running after each iteration, from the events alone."""

    def __init__(self):
        self.times, self.levels = [], []
        self.inside = 0

    def __call__(self, event):
        if isinstance(event, Iteration):
            self.inside += len(event.arrived)
            self.times.append((event.start, event.end, self.inside))
            self.inside -= len(event.completed) + sum(r.retry_at is None for r in event.rejected) + len(event.dropped)
            assert self.inside == event.queue_length + (
                event.active if isinstance(event.active, int) else len(event.active)
            )

    def mean(self, start, end):
        total = sum(max(0, min(e, end) - max(s, start)) * level for s, e, level in self.times)
        return total / (end - start)


@pytest.mark.parametrize(("policy", "load"), [("continuous", 0.7), ("vllm", 0.85)])
def test_littles_law(policy, load):
    """L = lambda W: L from the events of iterations, lambda and W from the tally of another run without events."""
    run = queue(6_000, 8, load, exponential(60), seed=5, mean=60, policy="continuous")
    if policy == "vllm":
        document = {
            "engine": {"policy": "vllm", "max_num_seqs": 8, "max_num_batched_tokens": 64},
            "cost": {"model": "linear", "unit": "ns", "per_iteration": ITERATION, "decode_token": 10_000},
            "workload": {"generate": {"num_prompts": 6_000, "seed": 2, "arrivals": "poisson", "request_rate": 95,
                                      "prompt": {"distribution": "uniform", "min": 10, "max": 90},
                                      "output": exponential(60)}},
        }  # fmt: skip
        [run] = build(document).runs
    summary, levels = run_of(run), Levels()
    simulate(run, [levels])
    arrival = summary.column("arrival")
    window = steady_window(part_of(summary.tally), arrival, summary.first_turns())
    inside = window.holds(arrival)
    spent = (np.asarray(summary.tally.last_time) - arrival)[inside]
    rate = inside.sum() / window.length
    assert window.length > 0.9 * int(arrival.max())
    found, expected = levels.mean(window.start, window.end), rate * spent.mean()
    assert found == pytest.approx(expected, rel=0.01)
    assert found > 3
