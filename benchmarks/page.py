"""The text of docs/performance.md, from what was measured."""

from typing import Any

Figures = dict[str, Any]
RUNS = ("run", "trace")
MB = 10**6


def page(found: dict[str, Figures], machine: dict[str, Any], week: Figures | None) -> str:
    """The whole document."""
    runs = {name: one for name, one in found.items() if one["what"] == "run"}
    parts = [
        INTRO.format(**machine),
        _table(runs),
        READING,
        _apart(runs),
        OTHERS,
        _others(found),
        _targets(found, week),
    ]
    return "\n".join(parts) + "\n" + (_week(week) if week else "")


INTRO = """# Performance

What `python benchmarks/report.py` measured; it writes this page. {date}, {cpu}, {cores} cores, {system},
Python {python}.

A case is a whole run through the public API: `simulate(run, [summary])`, then `summary.document(with_requests=False)`. The loads
are in [benchmarks/](../benchmarks): Poisson arrivals, log-normal lengths of about 512 + 128 tokens (long: 1500 + 200), 256 seats,
2,048 tokens a step, times from one set of round numbers. Seconds are CPU seconds of one process, the best of several; the machine
may have been busy. Reading the scenario and drawing the load are not in them.

The **reference** is the same code taking the plain path: where somebody listens (`lambda event: None`), every sequence is looked at
in every iteration, and each iteration is an event. It runs fewer requests of the same load, once interpreted
(`BATCHLAB_INTERPRETED=1`) and once compiled, in the same run of the script. So a ratio depends on the machine less than a rate does.

## Runs

| case | requests/s | ns an iteration | iterations a request | × reference, interpreted | × reference, compiled | served/s (simulated) | running |
|---|---:|---:|---:|---:|---:|---:|---:|"""

READING = """
`served/s` and `running` describe the load: requests completed per simulated second, and seats taken in the mean iteration. 80 % is
meant of what the saturated case serves; arrivals are 150/s, and 74/s of the long ones. The drain at the end of a run makes
`served/s` a little lower. Near idle most iterations are a few sequences decoding, which the loop passes without asking the policy.
Rates below what an engine can take are chosen for `static`, `fastertransformer`, `triton` and those with whole prompts.
"""

OTHERS = """
## Reading and writing

Rows or requests per CPU second. A CSV or Parquet file is read as a scenario's workload; a trace is a run that writes every
iteration; results are written as Parquet from a finished run.

| | count | per second | memory beyond the input, MB |
|---|---:|---:|---:|"""


def _table(runs: dict[str, Figures]) -> str:
    lines = []
    for one in runs.values():
        nanoseconds = one["seconds"] / one["iterations"] * 1e9
        lines.append(
            f"| {one['title']} | {one['rates'][0]:,.0f} | {nanoseconds:,.0f} | {one['iterations'] / one['requests']:.2f} "
            f"| {one['ratio']:,.0f} | {one['ratio_compiled']:,.1f} | {one['rate']:.1f} | {one['running']:.1f} |"
        )
    return "\n".join(lines)


def _apart(runs: dict[str, Figures]) -> str:
    """Where sequences that decode in step were looked at one by one."""
    lines = [
        "## Where steps are taken apart",
        "",
        "Sequences that decode go in step: together they cost what one costs. A preemption looks at single ones, so that step is",
        "taken apart, as is every step of a policy that schedules sequence by sequence, which never goes in step at all. By priority",
        "the victim is searched among all that run.",
        "",
        "| case | iterations | preemptions | iterations taken apart |",
        "|---|---:|---:|---:|",
    ]
    for one in runs.values():
        if one["preemptions"]:
            apart = one["taken_apart"]
            share = "not known" if apart is None else f"{apart:,} ({apart / one['iterations']:.1%})"
            lines.append(f"| {one['title']} | {one['iterations']:,} | {one['preemptions']:,} | {share} |")
    return "\n".join(lines)


def _others(found: dict[str, Figures]) -> str:
    return "\n".join(
        f"| {one['title']} | {one['requests']:,} | {one['rates'][0]:,.0f} | {one['bytes'] / MB:,.0f} |"
        for one in found.values()
        if one["what"] != "run"
    )


def _targets(found: dict[str, Figures], week: Figures | None) -> str:
    """What we set ourselves, and what came out. Nothing here is written by hand but the targets and the reasons."""
    most = max(("steady-20k", "steady-200k", "steady-2M"), key=lambda name: found[name]["rates"][0])
    lines = [
        "",
        "## Targets",
        "",
        "Set before the work, and kept as they were:",
        "",
        "| target | measured | |",
        "|---|---:|---|",
        _target(
            "vllm, fcfs, 80 % load: 5,000,000 requests/s (the best of the three sizes)",
            found[most]["rates"][0],
            5_000_000,
        ),
        _target("300 × the interpreted reference, 80 % load, 20,000 requests", found["steady-20k"]["ratio"], 300),
        _target("the same, 200,000 requests", found["steady-200k"]["ratio"], 300),
        _target("a policy of your own: 300,000 requests/s (fcfs)", found["user-fcfs"]["rates"][0], 300_000),
        _target("the same (shortest prompt first)", found["user-shortest"]["rates"][0], 300_000),
        _target("prefix caching, sessions: 1,000,000 requests/s", found["sessions"]["rates"][0], 1_000_000),
    ]
    memory = found["steady-2M"]["bytes"] / found["steady-2M"]["requests"]
    met = "met" if memory < 120 else f"**missed**, {memory / 120:.1f} × as much"
    lines.append(f"| below 120 bytes a request beyond the input, 2 million requests | {memory:,.0f} | {met} |")
    if week:
        took = week["read"] + week["run"] + week["document"]
        met = "met" if took <= 66 else f"**missed**, {took / 60:.1f} × as long"
        lines.append(f"| 45 million requests, read and run, in about a minute of CPU | {took:,.0f} s | {met} |")
    return "\n".join(lines) + WHY


def _target(name: str, measured: float, target: float) -> str:
    met = "met" if measured >= target else f"**missed**, {target / measured:.1f} × slower"
    return f"| {name} | {measured:,.0f} | {met} |"


WHY = """

Why 5 million a second are not reached: a request is one Python object and stands in a few Python lists on its way; an iteration
that admits, prefills or ends somebody takes dozens of small calls; and the policy is asked through the same public verbs as one of
your own, which check what they are asked. A program for this one policy in arrays alone would have none of that, and neither
policies of your own nor events. With a prefix cache blocks have an identity: sequences still go in step, but each is looked at where it
fills a block and where it takes one, and every block of every prompt is hashed, looked up, entered and freed by itself; a third of that
time is waiting for memory. With asynchronous scheduling each sequence is looked at singly in its first decode and in its last two steps.
Where the ratio is near 1, or below, the quick path brings nothing: such a policy looks at every sequence anyway.
"""


def _week(week: Figures) -> str:
    results = ", ".join(f"{count:,} {name}" for name, count in week["results"].items())
    return f"""
## A week of requests

`python benchmarks/report.py --week` writes {week["requests"]:,} requests over seven simulated days and nights as Parquet
({week["file_bytes"] / MB:,.0f} MB), reads the file as a scenario's workload and runs it to the end with `vllm`. {week["date"]}, {week["cpu"]}:

| | |
|---|---:|
| reading | {week["read"]:.1f} s |
| running | {week["run"]:.1f} s |
| all percentiles | {week["document"]:.1f} s |
| CPU in all | {week["read"] + week["run"] + week["document"]:.1f} s |
| by the clock, on a machine with other work | {week["clock"]:.1f} s |
| peak memory of the process, the requests' columns included | {week["peak_bytes"] / 1e9:.2f} GB |
| that is, a request with its input columns | {week["peak_bytes"] / week["requests"]:.0f} bytes |
| iterations | {week["iterations"]:,} |
| longest queue | {week["max_queue_length"]:,} |
| results | {results} |
"""
