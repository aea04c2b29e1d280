"""The same experiment with several seeds: its figures with their confidence intervals."""

from collections.abc import Callable, Iterable, Mapping

from batchlab.metrics.fold import Summary
from batchlab.metrics.intervals import Interval, interval
from batchlab.simulation import Run, simulate

Measure = Callable[[Summary], Mapping[str, float | None]]


def headline(summary: Summary) -> dict[str, float | None]:
    """Mean and p99 of every latency, as `ttft:mean`, and the throughput, of the whole run."""
    document = summary.document(with_requests=False)
    latency = document["latency"]
    found = {f"{name}:{statistic}": latency[name][statistic] for name in latency for statistic in ("mean", "p99")}
    return {**found, "request_rate": document["throughput"]["request_rate"]}


def over_seeds(
    run_of_seed: Callable[[int], Run], seeds: Iterable[int], measure: Measure = headline
) -> dict[str, Interval]:
    """Each figure over runs that differ by their seed, which makes them independent. The seeds must differ.

    run_of_seed: the Run of a seed. measure: what to take from a run, by name. A figure that one run has not got, such
    as a mean of no samples, has no interval.
    """
    found: dict[str, list[float | None]] = {}
    chosen = list(seeds)
    if len(set(chosen)) < len(chosen):
        raise ValueError("the seeds must differ: the same one twice is the same run twice")
    for seed in chosen:
        summary = Summary()
        simulate(run_of_seed(seed), [summary])
        for name, value in measure(summary).items():
            found.setdefault(name, []).append(value)
    return {name: interval(values) for name, values in found.items()}
