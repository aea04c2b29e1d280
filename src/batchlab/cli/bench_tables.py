"""What `bench` prints."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from batchlab.cli.answers import print_answers
from batchlab.cli.columns import print_folded, table_of
from batchlab.cli.large import FROM_SEND, NAMES, amount, print_latencies
from batchlab.cli.tables import console, say
from batchlab.errors import one_line
from batchlab.units import NS_IN_MS, counted

COMPARED = ("mean", "p50", "p90", "p99", "max")
SHOWN_REASONS = 5


def print_bench(found: dict[str, Any]) -> None:
    """The figures of a document, with the prediction beside them if it has one."""
    out = console()
    load = found["load"]
    results = ", ".join(f"{count:,} {name}" for name, count in found["results"].items())
    out.print(f"[bold]{escape(one_line(found['url']))}[/bold]")
    requests = counted(found["requests"], "request")
    partial = ", PARTIAL," if found["partial"] else ""
    say(
        out,
        f"model {one_line(found['model'])}; {requests}{partial} in {_loop(found)}: {results}",
    )
    for reason, count in list(found["reasons"].items())[:SHOWN_REASONS]:
        say(out, f"  {'once' if count == 1 else f'{count:,} times'}: {one_line(reason)}")
    if found["retries"]:
        attempts = counted(found["requests"] + found["retries"], "attempt")
        say(out, f"{counted(found['retried'], 'request')} needed more than one attempt: {attempts} in all")
    out.print()
    seen = _seen(found["latency"])
    if "predicted" in found:
        print_folded(out, _beside(found), ("count", *COMPARED), repeated=2)
        out.print()
    elif seen:
        print_latencies(out, seen, "ns")
        out.print()
    through = found["throughput"]
    if "answers" not in found and through["request_rate"] is not None:  # they say it too
        say(out, f"completed {_rated(through['request_rate'])}, {through['output_token_rate']:,.1f} output tokens/s")
    lag = load["send_lag"]
    parts = [f"sent {_rated(load['achieved_rate'])}"] if found["loop"] == "open" else []
    if load["asked_rate"] is not None:
        parts.append(f"at --request-rate {load['asked_rate']:g} {_rated(load['requested_rate'])} were drawn")
    elif load["requested_rate"] is not None:
        parts[0] += f" of {_rated(load['requested_rate'])} requested"
    parts.append(f"at most {load['max_in_flight']:,} in flight")
    parts.append(f"send lag p99 {lag['p99'] / NS_IN_MS:,.2f} ms, max {lag['max'] / NS_IN_MS:,.2f} ms")
    parts.append(f"{100 * load['client_cpu']:.0f} % of a core")
    _say_parts(out, parts, "; ")
    _say_server(out, found["server"])
    out.print()
    print_answers(found.get("answers"), "ns", found.get("predicted", {}).get("answers"))


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
        parts.append(counted(round(server["preemptions"]), "preemption"))
    looks = f"server, {counted(server['samples'], 'look')}"
    parts[:1] = [": ".join([looks, *parts[:1]])]
    _say_parts(out, parts, ", ")


def _say_parts(out: Console, parts: list[str], between: str) -> None:
    """A line of several parts; a terminal that is too narrow breaks it between them."""
    line = parts[0]
    for part in parts[1:]:
        if out.is_terminal and len(f"{line}{between}{part}{between}") > out.width:
            say(out, line + between.rstrip())
            line = part
        else:
            line += between + part
    say(out, line)


def _beside(found: dict[str, Any]) -> dict[str, list[str]]:
    """Measured and predicted, metric by metric."""
    rows = []
    both = {"measured": _seen(found["latency"]), "predicted": found["predicted"]["latency"]}
    for key, name in {**NAMES, **FROM_SEND}.items():
        heading = name
        for title, latency in both.items():
            if key in latency:
                cells = (amount(latency[key][f], "ns") for f in COMPARED)
                rows.append((heading, title, f"{latency[key]['count']:,}", *cells))
                heading = ""
    return table_of(("ms", "", "count", *COMPARED), rows)


def _seen(latency: dict[str, Any]) -> dict[str, Any]:
    """Without what only an engine knows, and what nobody has."""
    return {key: figures for key, figures in latency.items() if key != "queue_time" and figures["count"]}
