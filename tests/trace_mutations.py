"""Ways to break the iterations of a valid trace. Each names its sample and the rule that must catch it."""

from collections.abc import Callable
from typing import Any, NamedTuple

Lines = list[dict[str, Any]]
BASELINE = "decode-first-baseline"


class Mutation(NamedTuple):
    """One way to break the lines of a sample."""

    edit: Callable[[Lines], object]
    sample: str
    rule: str


MUTATIONS: dict[str, Mutation] = {}


def breaks(rule: str, sample: str = BASELINE) -> Callable[[Callable[[Lines], object]], Callable[[Lines], object]]:
    """Register a function that edits lines in place."""

    def register(edit: Callable[[Lines], object]) -> Callable[[Lines], object]:
        MUTATIONS[edit.__name__.replace("_", "-")] = Mutation(edit, sample, rule)
        return edit

    return register


def iteration(lines: Lines, number: int) -> dict[str, Any]:
    """The line of an iteration."""
    return next(line for line in lines if line.get("iteration") == number)


@breaks("tokens")
def a_scheduled_token_dropped(lines: Lines) -> None:
    # C loses its second prefill token and still completes: the sum at completion is one short.
    entry = iteration(lines, 4)["scheduled"]
    entry[0][2] = 2


@breaks("unused")
def a_batch_entry_one_token_short(lines: Lines) -> None:
    iteration(lines, 3)["scheduled"][1][2] = 2


@breaks("prefill-done")
def prefill_done_with_a_token_left(lines: Lines) -> None:
    iteration(lines, 1)["scheduled"][1][2] = 1


@breaks("tokens")
def more_prefill_than_is_left(lines: Lines) -> None:
    line = iteration(lines, 5)
    line["scheduled"][1][2] = 2
    line["unused"] -= 1


@breaks("tokens")
def twice_in_one_batch(lines: Lines) -> None:
    line = iteration(lines, 5)
    line["scheduled"].append(["A", "decode", 1])
    line["unused"] -= 1


@breaks("budget")
def over_budget(lines: Lines) -> None:
    line = iteration(lines, 0)
    line["scheduled"][0][2] = 5
    line["unused"] = -2


@breaks("unused", "recompute")
def unused_is_null_beside_a_budget(lines: Lines) -> None:
    iteration(lines, 2)["unused"] = None


@breaks("unused", "stalls")
def unused_without_a_budget(lines: Lines) -> None:
    iteration(lines, 2)["unused"] = 0


@breaks("lost")
def a_request_lost(lines: Lines) -> None:
    # E never gets its turn, and everything else is adjusted to that.
    line = iteration(lines, 5)
    line["scheduled"].pop()
    for field in ("admitted", "prefill_done", "first_token", "completed"):
        line[field].remove("E")
    line["queue"], line["unused"] = ["E"], 5
    end = lines[-1]
    end["results"] = {"completed": 4, "rejected": 1, "waiting": 1}
    end["totals"]["prefill_tokens"] -= 1
    end["totals"]["unused_budget"] += 1


@breaks("lifecycle")
def an_arrival_dropped(lines: Lines) -> None:
    iteration(lines, 2)["arrived"].remove("D")


@breaks("arrival")
def an_arrival_never_seen(lines: Lines) -> None:
    line = iteration(lines, 2)
    line["arrived"].remove("F")
    line["rejected"] = []


@breaks("arrival")
def an_arrival_before_its_time(lines: Lines) -> None:
    lines[0]["requests"][3]["arrival"] = 3


@breaks("arrival")
def an_arrival_seen_late(lines: Lines) -> None:
    lines[0]["requests"][2]["arrival"] = 0


@breaks("arrival")
def arrivals_out_of_order(lines: Lines) -> None:
    iteration(lines, 0)["arrived"].reverse()


@breaks("lifecycle")
def arrived_twice(lines: Lines) -> None:
    iteration(lines, 3)["arrived"].append("E")


@breaks("lifecycle")
def an_unknown_id(lines: Lines) -> None:
    iteration(lines, 1)["admitted"].append("Z")


@breaks("lifecycle")
def a_preempted_one_scheduled(lines: Lines) -> None:
    line = iteration(lines, 2)
    line["scheduled"].append(["A", "prefill", 2])
    line["unused"] -= 2


@breaks("lifecycle")
def a_rejected_one_scheduled(lines: Lines) -> None:
    line = iteration(lines, 3)
    line["scheduled"].append(["F", "prefill", 1])
    line["unused"] -= 1


@breaks("lifecycle")
def a_rejected_one_admitted(lines: Lines) -> None:
    iteration(lines, 4)["admitted"].append("F")


@breaks("lifecycle")
def rejected_with_a_seat(lines: Lines) -> None:
    iteration(lines, 2)["rejected"].append({"id": "B", "reason": "queue full"})


@breaks("lifecycle")
def admitted_twice(lines: Lines) -> None:
    iteration(lines, 1)["admitted"].append("B")


@breaks("lifecycle")
def preempted_without_a_seat(lines: Lines) -> None:
    out = {"id": "A", "mode": "keep", "place": "front", "computed": 3}
    iteration(lines, 2)["preempted"].append(out)


@breaks("lifecycle")
def scheduled_after_completion(lines: Lines) -> None:
    line = iteration(lines, 3)
    line["scheduled"].append(["C", "decode", 1])
    line["unused"] -= 1


@breaks("completed")
def completed_again_later(lines: Lines) -> None:
    iteration(lines, 2)["completed"].append("C")


@breaks("completed")
def completed_named_twice(lines: Lines) -> None:
    iteration(lines, 1)["completed"].append("C")


@breaks("completed")
def completed_too_early(lines: Lines) -> None:
    iteration(lines, 3)["completed"].append("D")


@breaks("completed")
def completed_in_another_order(lines: Lines) -> None:
    iteration(lines, 5)["completed"].reverse()


@breaks("completed")
def output_length_changed(lines: Lines) -> None:
    request = lines[0]["requests"][0]
    request["output"] = request["max_tokens"] = 4


@breaks("first-token")
def first_token_early(lines: Lines) -> None:
    iteration(lines, 0)["first_token"].append("A")


@breaks("first-token", "recompute")
def first_token_again_after_recompute(lines: Lines) -> None:
    iteration(lines, 4)["first_token"].append("B")


@breaks("prefill-done")
def prefill_done_in_another_order(lines: Lines) -> None:
    iteration(lines, 3)["prefill_done"].reverse()


@breaks("phase")
def decode_during_prefill(lines: Lines) -> None:
    line = iteration(lines, 3)
    line["scheduled"][1] = ["A", "decode", 1]
    line["unused"] += 2


@breaks("phase")
def prefill_after_prefill(lines: Lines) -> None:
    iteration(lines, 4)["scheduled"][1] = ["A", "prefill", 1]


@breaks("phase", "recompute")
def decode_right_after_recompute(lines: Lines) -> None:
    line = iteration(lines, 3)
    line["scheduled"][1] = ["B", "decode", 1]
    line["unused"] += 1


@breaks("progress")
def progress_stated_wrongly(lines: Lines) -> None:
    iteration(lines, 1)["preempted"][0]["computed"] = 0


@breaks("prefill-done")
def progress_forgotten(lines: Lines) -> None:
    iteration(lines, 1)["preempted"][0]["mode"] = "recompute"


@breaks("phase", "recompute")
def progress_kept_where_it_is_lost(lines: Lines) -> None:
    iteration(lines, 2)["preempted"][0]["mode"] = "keep"


@breaks("seats")
def a_seat_above_the_cap(lines: Lines) -> None:
    line = iteration(lines, 4)
    line["admitted"].append("E")
    line["queue"], line["active"] = [], ["A", "E"]
    iteration(lines, 5)["admitted"].remove("E")


@breaks("queue-bound")
def a_queue_above_the_bound(lines: Lines) -> None:
    line = iteration(lines, 2)
    line["rejected"] = []
    line["queue"].append("F")


@breaks("queue")
def queue_order_changed(lines: Lines) -> None:
    iteration(lines, 2)["queue"].reverse()


@breaks("queue", "decode-first-double-preemption")
def preempted_in_the_wrong_order(lines: Lines) -> None:
    iteration(lines, 1)["queue"].reverse()


@breaks("queue", "both-ends-of-the-queue")
def preempted_to_the_front_stands_behind(lines: Lines) -> None:
    iteration(lines, 1)["queue"] = ["W", "C", "B", "Y", "A", "Z"]


@breaks("queue", "both-ends-of-the-queue")
def newcomers_changed_places(lines: Lines) -> None:
    iteration(lines, 1)["queue"] = ["C", "W", "B", "Z", "A", "Y"]


@breaks("queue", "by-key")
def queue_neither_first_come_nor_by_key(lines: Lines) -> None:
    line = iteration(lines, 2)
    line["preempted"][0]["place"] = "front"
    line["queue"] = ["C", "A", "B"]


@breaks("queue")
def one_missing_in_the_queue(lines: Lines) -> None:
    iteration(lines, 1)["queue"] = []


@breaks("queue", "long-queue")
def queue_miscounted(lines: Lines) -> None:
    iteration(lines, 7)["queue"] += 1


@breaks("active")
def active_order_changed(lines: Lines) -> None:
    iteration(lines, 3)["active"].reverse()


@breaks("active")
def one_missing_in_active(lines: Lines) -> None:
    iteration(lines, 3)["active"].pop()


@breaks("idle", "decode-first-idle-gap")
def idle_without_a_reason(lines: Lines) -> None:
    iteration(lines, 4)["idle"] = None


@breaks("idle")
def a_reason_to_idle_while_working(lines: Lines) -> None:
    iteration(lines, 4)["idle"] = "no work"


@breaks("idle", "stalls")
def no_work_while_some_wait(lines: Lines) -> None:
    iteration(lines, 4)["idle"] = "no work"


@breaks("jump", "decode-first-idle-gap")
def no_work_on_a_jumping_clock(lines: Lines) -> None:
    lines[0]["clock"]["idle"] = "jump"
