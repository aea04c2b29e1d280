"""batchlab experiment."""

from dataclasses import asdict

import click
from rich.markup import escape

from batchlab.cli.bench_options import Number
from batchlab.cli.columns import print_folded
from batchlab.cli.documents import print_json
from batchlab.cli.large import milliseconds
from batchlab.cli.notes import note
from batchlab.cli.progress import counted_bar
from batchlab.cli.scenario_options import Changes, parse_values, scenario_options
from batchlab.cli.sweep import say_step_times
from batchlab.cli.tables import console, say
from batchlab.compare import said
from batchlab.errors import InputError, one_line
from batchlab.plan import experiment as comparing
from batchlab.plan.experiment import TIMES, Measured
from batchlab.plan.pool import cores, each
from batchlab.plan.trial import Trial


@click.command()
@click.argument("scenario", type=click.Path())
@click.option(
    "--vary",
    default="engine.max_num_batched_tokens=1024,2048",
    show_default=True,
    metavar="KEY=FIRST,SECOND",
    help="The one thing that changes.",
)
@click.option("--short", type=click.IntRange(1), default=512, show_default=True, help="Longest prompt that is short.")
@click.option("--warm-up", type=float, default=0.1, show_default=True, help="Share of the load's time not measured.")
@click.option("--slo", metavar="OBJECTIVES", help="What to meet: 'ttft:p99<=500ms,itl:p99<=50ms'")
@scenario_options()
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Processes to run in.  [default: all cores]")
@click.option(
    "--engine",
    metavar="COMMAND",
    help="Measure real servers beside: 'vllm serve MODEL --max-num-batched-tokens {value} --host 127.0.0.1 "
    "--port {port}'. No shell.",
)
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="With --engine: repetitions."
)
@click.option(
    "--ready-within",
    type=Number(0.1, 86400),
    default=600.0,
    show_default=True,
    help="With --engine: seconds that a server has to come up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def experiment(
    scenario: str,
    vary: str,
    short: int,
    warm_up: float,
    slo: str | None,
    changes: Changes,
    jobs: int | None,
    engine: str | None,
    rounds: int,
    ready_within: float,
    as_json: bool,
) -> None:
    """Change one setting of a SCENARIO and nothing else: short, long and mixed prompts apart, and what it means.

    The load is a file or generated. Its short prompts alone, its long ones alone, and all of them run at both values,
    each request at its own time. With --engine a server is started for each value in each round, loaded with the same
    requests and stopped; the simulation stands beside.
    """
    if not 0 <= warm_up < 1:
        raise InputError("--warm-up", None, warm_up, "must be a share from 0 to below 1")
    varied = parse_values([vary.partition("=")], "--vary")
    trial = Trial(scenario, changes.fixed(scenario, varied, "--vary"), changes.workload, slo)
    todo = comparing.parts(trial, varied, short, warm_up)
    words = None if engine is None else _words(engine, todo)
    found = {}
    with counted_bar("experiment") as done:
        for number, measured in each(_measure, list(enumerate(todo)), jobs or cores()):
            found[number[0]] = measured
            done(len(found), len(todo))
    rows = [found[number] for number in range(len(todo))]
    for line in dict.fromkeys(line for row in rows for line in row.notes):
        note(line)
    key = next(iter(varied))
    if words is not None:
        from batchlab.bench.rounds import run_rounds
        from batchlab.cli import experiment_rounds

        with counted_bar("rounds") as done:
            arms = run_rounds(todo, words, rounds, ready_within, done)
        head = {"varied": key, "short": short, "warm_up": warm_up, "slo": slo}
        experiment_rounds.tell(experiment_rounds.Experiment(key, rows, arms), head if as_json else None)
        return
    readings = {one.load: comparing.read(one, other, key) for one, other in zip(rows[::2], rows[1::2], strict=True)}
    if as_json:
        document = {"varied": key, "short": short, "warm_up": warm_up, "slo": slo}
        print_json({**document, "runs": [asdict(row) for row in rows], "reading": readings})
        return
    out = console()
    say_step_times(trial.with_settings({key: varied[key][0]}), varied)
    columns = _columns(rows, key, slo)
    print_folded(out, columns, tuple(columns)[1:])
    times, rates = ("ms", "s") if rows[0].unit == "ns" else (f"{rows[0].unit}s", rows[0].unit)
    say(out, f"times in {times}, rates per {rates}; short: prompts up to {short:,} tokens")
    say(out, f"requests of the first {100 * warm_up:g} % of the time are served and not measured")
    for load, lines in readings.items():
        for line in lines:
            say(out, f"{load}: {line}")


def _words(engine: str, todo: list[comparing.Part]) -> list[str]:
    """The command of the servers, if these loads can be sent to any. Raises InputError."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        raise InputError(
            "--engine",
            None,
            None,
            "needs aiohttp: pip install 'batchlab[bench]', or in a checkout .venv/bin/pip install -e '.[bench]'",
        ) from None
    from batchlab.bench.engine import refuse_missing, words_of

    unit = comparing.requests_of(todo[0])[0].cost.unit
    if unit != "ns":
        raise InputError(todo[0].trial.scenario, "cost.unit", unit, "must be 'ns': a load is sent in real time")
    words = words_of(engine)
    refuse_missing(words)
    return words


def _measure(numbered: tuple[int, comparing.Part]) -> Measured:
    return comparing.measure(numbered[1])


def _columns(runs: list[Measured], key: str, slo: str | None) -> dict[str, list[str]]:
    """The names of the figures, then a column a run: six of them fit where their figures side by side would not."""
    names = [*TIMES]
    columns = [
        [_time(run.latency[metric][statistic], run.unit) for metric, statistic in TIMES.values()] for run in runs
    ]
    per = "s" if runs[0].unit == "ns" else runs[0].unit
    names += [f"requests/{per}", f"output tokens/{per}", "KV use", "preemptions"]
    for run, cells in zip(runs, columns, strict=True):
        use = "-" if run.kv_use is None else f"{100 * run.kv_use:.0f} %"
        cells += [f"{run.request_rate:,.2f}", f"{run.output_token_rate:,.1f}", use, f"{run.preemptions:,}"]
    if slo is not None:
        names.append("objectives met")
        for run, cells in zip(runs, columns, strict=True):
            cells.append("yes" if run.met else "no")
    heads = [f"{run.load}\n{escape(one_line(said(key, run.value)))}" for run in runs]
    return {f"prompts\n{key.rpartition('.')[2]}": names, **dict(zip(heads, columns, strict=True))}


def _time(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return milliseconds(value) if unit == "ns" else f"{value:,.2f}"
