"""What `bench` prints."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from batchlab.cli.answers import print_answers
from batchlab.cli.large import FROM_SEND, NAMES, amount, print_latencies
from batchlab.cli.tables import console, plain_table, say
from batchlab.errors import one_line

COMPARED = ("mean", "p50", "p90", "p99", "max")
SHOWN_REASONS = 5


def print_bench(found: dict[str, Any]) -> None:
    """The figures of a document, with the prediction beside them if it has one."""
    out = console()
    load = found["load"]
    results = ", ".join(f"{count:,} {name}" for name, count in found["results"].items())
    out.print(f"[bold]{escape(one_line(found['url']))}[/bold]")
    say(out, f"model {one_line(found['model'])}; {found['requests']:,} requests in {_loop(found)}: {results}")
    for reason, count in list(found["reasons"].items())[:SHOWN_REASONS]:
        say(out, f"  {count:,} times: {one_line(reason)}")
    out.print()
    if "predicted" in found:
        out.print(_beside(found))
    else:
        print_latencies(out, found["latency"], "ns")
    out.print()
    through = found["throughput"]
    if "answers" not in found and through["request_rate"] is not None:  # they say it too
        say(out, f"completed {_rated(through['request_rate'])}, {through['output_token_rate']:,.1f} output tokens/s")
    lag = load["send_lag"]
    sent = f"sent {_rated(load['achieved_rate'])}"
    if load["requested_rate"] is not None:
        sent += f" of {_rated(load['requested_rate'])} requested"
    worst = f"send lag p99 {amount(lag['p99'], 'ns')} ms, max {amount(lag['max'], 'ns')} ms"
    say(
        out, f"{sent}; at most {load['max_in_flight']:,} in flight; {worst}; {100 * load['client_cpu']:.0f} % of a core"
    )
    _say_server(out, found["server"])
    out.print()
    print_answers(found.get("answers"), "ns")


def _loop(found: dict[str, Any]) -> str:
    return "an open loop" if found["loop"] == "open" else "a CLOSED loop: it slows down with the server"


def _rated(rate: float | None) -> str:
    return "all at once" if rate is None else f"{rate:,.3f} requests/s"


def _say_server(out: Console, server: dict[str, Any] | None) -> None:
    if server is None:
        say(out, "server: no vllm: metrics at /metrics")
        return
    parts = []
    for name, title in (("running", "running"), ("waiting", "waiting"), ("kv_cache_usage", "KV use")):
        if server[name] is not None:
            scale, unit = (100, " %") if name == "kv_cache_usage" else (1, "")
            mean, most = (f"{scale * server[name][figure]:,.1f}{unit}" for figure in ("mean", "max"))
            parts.append(f"{title} mean {mean} max {most}")
    if server["preemptions"] is not None:
        parts.append(f"{server['preemptions']:,.0f} preemptions")
    say(out, f"server, {server['samples']:,} looks: {', '.join(parts)}")


def _beside(found: dict[str, Any]) -> Table:
    """Measured and predicted, metric by metric."""
    shown = plain_table("ms", "", "count", *COMPARED, numeric=("count", *COMPARED))
    for key, name in {**NAMES, **FROM_SEND}.items():
        for title in ("measured", "predicted"):
            figures = (found if title == "measured" else found["predicted"])["latency"].get(key)
            if figures is not None:
                cells = (amount(figures[f], "ns") for f in COMPARED)
                shown.add_row(name if title == "measured" else "", title, f"{figures['count']:,}", *cells)
    return shown
