"""Ways to break what frames the iterations: times, ends, totals, requests, the form of lines, the summary."""

from collections.abc import Callable
from typing import Any

from trace_mutations import BASELINE, MUTATIONS, Lines, Mutation, breaks, iteration

SUMMARY_MUTATIONS: dict[str, Callable[[dict[str, Any]], object]] = {}


@breaks("clock", "three-modes-chunked")
def times_swapped(lines: Lines) -> None:
    line = iteration(lines, 2)
    line["start"], line["end"] = line["end"], line["start"]


@breaks("clock", "three-modes-chunked")
def work_takes_no_time(lines: Lines) -> None:
    line = iteration(lines, 1)
    line["end"] = line["start"]


@breaks("clock", "three-modes-chunked")
def iterations_overlap(lines: Lines) -> None:
    iteration(lines, 3)["start"] -= 1


@breaks("clock")
def a_gap_in_a_stepping_clock(lines: Lines) -> None:
    for number in (4, 5):
        line = iteration(lines, number)
        line["start"] += 1
        line["end"] += 1
    lines[-1]["time"] += 1


@breaks("clock")
def a_long_unit_iteration(lines: Lines) -> None:
    iteration(lines, 5)["end"] += 1
    lines[-1]["time"] += 1


@breaks("numbering")
def an_iteration_number_skipped(lines: Lines) -> None:
    iteration(lines, 5)["iteration"] = 6


@breaks("numbering", "decode-first-idle-gap")
def an_idle_iteration_removed(lines: Lines) -> None:
    lines.remove(iteration(lines, 4))


@breaks("limit")
def more_iterations_than_allowed(lines: Lines) -> None:
    lines[0]["max_iterations"] = 5


@breaks("end", "decode-first-iteration-limit")
def iteration_limit_not_reached(lines: Lines) -> None:
    lines[0]["max_iterations"] = 4


@breaks("end")
def iteration_limit_with_nothing_left(lines: Lines) -> None:
    lines[0]["max_iterations"] = 6
    lines[-1]["termination"] = "iteration_limit"


@breaks("lost", "decode-first-iteration-limit")
def limit_told_as_the_end(lines: Lines) -> None:
    lines[-1]["termination"] = "all_terminal"


@breaks("end")
def wrong_number_of_iterations(lines: Lines) -> None:
    lines[-1]["iterations"] += 1


@breaks("end")
def wrong_final_time(lines: Lines) -> None:
    lines[-1]["time"] -= 1


@breaks("results")
def wrong_results(lines: Lines) -> None:
    lines[-1]["results"]["completed"] -= 1


@breaks("complete")
def end_line_removed(lines: Lines) -> None:
    lines.pop()


@breaks("request")
def id_given_twice(lines: Lines) -> None:
    lines[0]["requests"].append(dict(lines[0]["requests"][-1]))


@breaks("request")
def max_tokens_below_output(lines: Lines) -> None:
    lines[0]["requests"][0]["max_tokens"] = 2


@breaks("request")
def max_tokens_not_by_its_rule(lines: Lines) -> None:
    lines[0]["requests"][0]["max_tokens"] = 9


@breaks("request", "recompute")
def fewer_requests_than_the_source_has(lines: Lines) -> None:
    lines[0]["source"]["requests"] = 4


@breaks("format")
def unknown_field(lines: Lines) -> None:
    iteration(lines, 1)["preemptd"] = []


@breaks("format")
def missing_field(lines: Lines) -> None:
    del iteration(lines, 1)["queue"]


@breaks("format")
def a_string_for_a_number(lines: Lines) -> None:
    iteration(lines, 1)["start"] = "1"


@breaks("format")
def true_for_a_number(lines: Lines) -> None:
    iteration(lines, 1)["start"] = True


@breaks("format")
def unknown_phase(lines: Lines) -> None:
    iteration(lines, 1)["scheduled"][0][1] = "encode"


@breaks("format")
def unknown_type_of_line(lines: Lines) -> None:
    lines[1]["type"] = "iterations"


@breaks("format")
def another_schema_version(lines: Lines) -> None:
    lines[0]["schema"] = 2


@breaks("format")
def header_removed(lines: Lines) -> None:
    del lines[0]


@breaks("format")
def two_headers(lines: Lines) -> None:
    lines.insert(1, lines[0])


@breaks("format")
def lines_after_the_end(lines: Lines) -> None:
    lines.append(lines[-1])


@breaks("format")
def request_line_beside_a_list(lines: Lines) -> None:
    lines.insert(1, {"type": "request", **lines[0]["requests"][0], "id": "G", "arrival": 99})


@breaks("format")
def short_queue_as_a_number(lines: Lines) -> None:
    iteration(lines, 2)["queue"] = 2


@breaks("lifecycle", "recompute")
def request_line_too_late(lines: Lines) -> None:
    lines.insert(5, lines.pop(3))
    lines.insert(9, lines.pop(5))


def _wrong_total(name: str) -> None:
    def edit(lines: Lines) -> None:
        totals = lines[-1]["totals"]
        totals[name] = {"queue full": 7} if name == "rejections" else (totals[name] or 0) + 1

    MUTATIONS[f"wrong-total-{name}"] = Mutation(edit, BASELINE, "totals")


def _wrong_summary(name: str, value: object, request: int | None = None) -> None:
    def edit(summary: dict[str, Any]) -> None:
        target = summary if request is None else summary["requests"][request]
        target[name] = value

    SUMMARY_MUTATIONS[name if request is None else f"request-{name}"] = edit


for _name in (
    "max_queue_length",
    "preemptions",
    "rejections",
    "unused_budget",
    "prefill_tokens",
    "decode_tokens",
    "recomputed_tokens",
    "cached_tokens",
    "moved_blocks",
    "retries",
    "decode_stalls",
    "preempted_decode_stalls",
):
    _wrong_total(_name)

for _name, _value in {
    "schema": 2,
    "engine": "vllm",
    "rules": "",
    "unit": "ns",
    "termination": "iteration_limit",
    "iterations": 6.0,
    "time": 7,
    "results": {"completed": 6},
    "totals": {},
    "requests": [],
    "extra": None,
}.items():
    _wrong_summary(_name, _value)

for _name, _value in {
    "id": "B",
    "arrival": 1,
    "priority": 0,
    "prompt": 5,
    "output": 4,
    "result": "waiting",
    "reason": "queue full",
    "first_output": 2,
    "completed": None,
    "queue_time": 3,
    "ttft": 3,
    "e2el": 5,
    "max_itl": 2,
    "preemptions": True,
    "recomputed_tokens": 3,
    "attempts": 0,
    "output_times": [4, 5],
    "extra": 0,
}.items():
    _wrong_summary(_name, _value, request=0)
