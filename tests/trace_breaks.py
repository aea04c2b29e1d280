"""Ways to break any valid trace, one rule at a time. Each looks for a place where it applies, and tells whether."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Lines = list[dict[str, Any]]
Edit = Callable[[Lines], bool]


class Break(NamedTuple):
    """One way to break a trace, and the rule that must catch it."""

    edit: Edit
    rule: str


BREAKS: dict[str, Break] = {}


def breaks(rule: str) -> Callable[[Edit], Edit]:
    """Register a function that edits lines in place."""

    def register(edit: Edit) -> Edit:
        BREAKS[edit.__name__.replace("_", "-")] = Break(edit, rule)
        return edit

    return register


def iterations(lines: Lines) -> Lines:
    """The iteration lines."""
    return [line for line in lines if line["type"] == "iteration"]


def busy(lines: Lines) -> Iterator[dict[str, Any]]:
    """Iterations with tokens."""
    return (line for line in iterations(lines) if line["scheduled"])


def requests(lines: Lines) -> dict[str, dict[str, Any]]:
    """The requests by id."""
    found = lines[0].get("requests") or [line for line in lines if line["type"] == "request"]
    return {request["id"]: request for request in found}


def in_first(lines: Lines, field: str, edit: Callable[[dict[str, Any]], object]) -> bool:
    """Edit the first iteration in which the field is not empty."""
    line = next((line for line in iterations(lines) if line.get(field)), None)
    if line is None:
        return False
    edit(line)
    return True


def spend(line: dict[str, Any], tokens: int) -> None:
    """Keep `unused` right for so many more tokens."""
    if line["unused"] is not None:
        line["unused"] -= tokens


# Sessions


@breaks("session")
def a_turn_comes_before_its_time(lines: Lines) -> bool:
    turn = next((line for line in lines if line["type"] == "request" and "after" in line), None)
    if turn is None:
        return False
    turn["think_time"] += 1
    return True


# Blocks


@breaks("kv")
def a_block_leaked(lines: Lines) -> bool:
    for line in iterations(lines):
        if "kv" in line and not line["completed"]:
            line["kv"]["free_after"] -= 1
            return True
    return False


@breaks("kv")
def a_block_freed_twice(lines: Lines) -> bool:
    for line in iterations(lines):
        if "kv" in line and line["scheduled"] and not line["preempted"] and not line.get("dropped"):
            line["kv"]["free"] += 1
            return True
    return False


@breaks("kv")
def blocks_kept_after_completion(lines: Lines) -> bool:
    last = iterations(lines)[-1]
    if "kv" not in last or not last["completed"]:
        return False
    last["kv"]["free_after"] = last["kv"]["free"]
    return True


@breaks("kv")
def blocks_freed_without_completion(lines: Lines) -> bool:
    for line in iterations(lines):
        if "kv" in line and line["active"] and not line["completed"]:
            line["kv"]["free_after"] = lines[0]["limits"]["num_gpu_blocks"]
            return True
    return False


@breaks("kv")
def fewer_than_no_blocks(lines: Lines) -> bool:
    return in_first(lines, "kv", lambda line: line["kv"].update(free=-1))


@breaks("kv")
def a_smaller_pool(lines: Lines) -> bool:
    if "num_gpu_blocks" not in lines[0]["limits"]:
        return False
    lines[0]["limits"]["num_gpu_blocks"] -= 1
    return True


@breaks("kv")
def blocks_not_stated(lines: Lines) -> bool:
    return in_first(lines, "kv", lambda line: line.pop("kv"))


@breaks("kv")
def blocks_without_a_pool(lines: Lines) -> bool:
    if "num_gpu_blocks" not in lines[0]["limits"]:
        return False
    for name in ("num_gpu_blocks", "block_size", "enable_prefix_caching"):
        del lines[0]["limits"][name]
    return True


@breaks("swap")
def a_moved_block_too_many(lines: Lines) -> bool:
    return in_first(lines, "kv", lambda line: line["kv"].update(moved=line["kv"]["moved"] + 1))


@breaks("swap")
def nothing_moved_in(lines: Lines) -> bool:
    for line in iterations(lines):
        if line.get("kv", {}).get("moved") and not line["preempted"]:
            line["kv"]["moved"] = 0
            return True
    return False


@breaks("swap")
def nothing_moved_out(lines: Lines) -> bool:
    for line in iterations(lines):
        if line.get("kv", {}).get("moved") and line["preempted"]:
            line["kv"]["moved"] = 0
            return True
    return False


# The prefix cache


@breaks("cached")
def cached_more_than_known(lines: Lines) -> bool:
    def edit(line: dict[str, Any]) -> None:
        size = lines[0]["limits"]["block_size"]
        line["cached"][0][1] = size * (10_000 // size)

    return lines[0]["limits"].get("enable_prefix_caching", False) and in_first(lines, "cached", edit)


@breaks("cached")
def cached_the_whole_prompt(lines: Lines) -> bool:
    for line in iterations(lines):
        for entry in line.get("cached", ()):
            prompt = requests(lines)[entry[0]]["prompt"]
            first = entry[0] not in {id for other in lines[: lines.index(line)] for id, _ in other.get("cached", ())}
            whole = prompt % lines[0]["limits"]["block_size"] == 0
            if lines[0]["limits"]["enable_prefix_caching"] and first and whole:
                entry[1] = prompt
                return True
    return False


@breaks("cached")
def cached_without_a_cache(lines: Lines) -> bool:
    if any(tokens for line in iterations(lines) for _, tokens in line.get("cached", ())):
        lines[0]["limits"]["enable_prefix_caching"] = False
        return True
    return False


@breaks("cached")
def cached_half_a_block(lines: Lines) -> bool:
    size = lines[0]["limits"].get("block_size", 1)
    for line in iterations(lines):
        for entry in line.get("cached", ()):
            if entry[1] and size > 1:
                entry[1] -= 1
                return True
    return False


@breaks("cached")
def cached_not_stated(lines: Lines) -> bool:
    return in_first(lines, "cached", lambda line: line["cached"].pop())


@breaks("cached")
def cached_for_one_that_sits_already(lines: Lines) -> bool:
    for line in iterations(lines):
        for id, phase, _ in line["scheduled"]:
            if "cached" in line and phase == "decode" and id not in line["admitted"]:
                line["cached"].append([id, 0])
                return True
    return False


# Clients


@breaks("retry")
def retry_stated_too_early(lines: Lines) -> bool:
    return _retries(lines, lambda line, entry: entry.update(retry_at=entry["retry_at"] - 1))


@breaks("retry")
def retry_not_stated(lines: Lines) -> bool:
    return _retries(lines, lambda line, entry: entry.pop("retry_at"))


@breaks("retry")
def attempts_beyond_the_limit(lines: Lines) -> bool:
    if not _retries(lines, lambda line, entry: None):
        return False
    lines[0]["retry"]["limit"] = 1
    return True


@breaks("retry")
def one_waits_less_the_second_time(lines: Lines) -> bool:
    twice: set[str] = set()
    for line in iterations(lines):
        for entry in line["rejected"]:
            if "retry_at" in entry and entry["id"] in twice and lines[0]["retry"]["factor"] > 1:
                entry["retry_at"] = line["start"] + lines[0]["retry"]["wait"]
                return True
            twice.add(entry["id"])
    return False


@breaks("retry")
def comes_again_too_early(lines: Lines) -> bool:
    return _come_again(lines, -1)


@breaks("retry")
def comes_again_too_late(lines: Lines) -> bool:
    return _come_again(lines, 1)


@breaks("retry")
def comes_again_where_nobody_does(lines: Lines) -> bool:
    for line in iterations(lines):
        for entry in line["rejected"]:
            if lines[0].get("retry") is None:
                entry["retry_at"] = line["start"] + 1
                return True
    return False


def _retries(lines: Lines, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> bool:
    for line in iterations(lines):
        for entry in line["rejected"]:
            if "retry_at" in entry:
                edit(line, entry)
                return True
    return False


def _come_again(lines: Lines, shift: int) -> bool:
    """Move the second arrival of a request to a neighbouring line; the rest of the file no longer matters."""
    everything, rejected = iterations(lines), set()
    for number, line in enumerate(everything):
        for id in line["arrived"]:
            other = everything[number + shift : number + shift + 1]
            if id in rejected and other and id not in {entry["id"] for entry in other[0]["rejected"]}:
                line["arrived"].remove(id)
                other[0]["arrived"].append(id)
                return True
        rejected.update(entry["id"] for entry in line["rejected"])
    return False


def _drop(lines: Lines, result: str, edit: Callable[[dict[str, Any], dict[str, Any]], object]) -> bool:
    for line in iterations(lines):
        for entry in line.get("dropped", ()):
            if entry["result"] == result:
                edit(line, entry)
                return True
    return False


@breaks("dropped")
def a_cancelled_one_goes_on(lines: Lines) -> bool:
    return _drop(lines, "cancelled", lambda line, entry: line["dropped"].remove(entry))


@breaks("dropped")
def an_expired_one_goes_on(lines: Lines) -> bool:
    return _drop(lines, "expired", lambda line, entry: line["dropped"].remove(entry))


@breaks("dropped")
def cancelled_too_early(lines: Lines) -> bool:
    return _drop(
        lines, "cancelled", lambda line, entry: requests(lines)[entry["id"]].update(cancel_at=line["start"] + 1)
    )


@breaks("dropped")
def cancelled_by_nobody(lines: Lines) -> bool:
    return _drop(lines, "cancelled", lambda line, entry: requests(lines)[entry["id"]].pop("cancel_at"))


@breaks("dropped")
def cancelled_too_late(lines: Lines) -> bool:
    for line in iterations(lines):
        for entry in line.get("dropped", ()):
            request = requests(lines)[entry["id"]]
            if entry["result"] == "cancelled" and request["arrival"] < line["start"]:
                request["cancel_at"] = request["arrival"]
                return True
    return False


@breaks("dropped")
def expired_where_deadlines_are_kept(lines: Lines) -> bool:
    return _drop(lines, "expired", lambda line, entry: lines[0].update(deadlines="keep"))


@breaks("dropped")
def expired_before_the_deadline(lines: Lines) -> bool:
    def edit(line: dict[str, Any], entry: dict[str, Any]) -> None:
        requests(lines)[entry["id"]]["deadline"] += 10_000

    return _drop(lines, "expired", edit)


@breaks("lifecycle")
def dropped_twice(lines: Lines) -> bool:
    return in_first(lines, "dropped", lambda line: line["dropped"].append(line["dropped"][0]))


@breaks("lifecycle")
def dropped_before_it_came(lines: Lines) -> bool:
    last = requests(lines)[iterations(lines)[-1]["completed"][0]]["id"] if iterations(lines)[-1]["completed"] else None
    if last is None or last in iterations(lines)[0]["arrived"]:
        return False
    iterations(lines)[0]["dropped"] = [{"id": last, "result": "failed", "reason": "no reason"}]
    return True


# Several steps in flight


@breaks("delivery")
def delivered_twice(lines: Lines) -> bool:
    everything = iterations(lines)
    for before, line in itertools.pairwise(everything):
        if lines[0].get("steps_in_flight", 1) > 1 and before.get("delivers") is not None and line.get("delivers"):
            line["delivers"] = before["delivers"]
            return True
    return False


@breaks("delivery")
def never_delivered(lines: Lines) -> bool:
    for line in iterations(lines):
        if line.get("delivers") is not None and iterations(lines)[line["delivers"]]["scheduled"]:
            line["delivers"] = None
            return True
    return False


@breaks("delivery")
def delivered_before_its_turn(lines: Lines) -> bool:
    for line in iterations(lines):
        if line.get("delivers") is not None and line["scheduled"] and iterations(lines)[line["delivers"]]["scheduled"]:
            line["delivers"] += 1
            return True
    return False


@breaks("delivery")
def delivered_before_it_is_planned(lines: Lines) -> bool:
    line = iterations(lines)[0]
    line["delivers"] = 5
    return True


@breaks("delivery")
def one_step_in_flight_too_many(lines: Lines) -> bool:
    if lines[0].get("steps_in_flight", 1) == 1:
        return False
    lines[0]["steps_in_flight"] = 1
    return True


@breaks("discarded")
def a_discarded_token_forgotten(lines: Lines) -> bool:
    return in_first(lines, "discarded", lambda line: line.pop("discarded"))


@breaks("discarded")
def the_token_of_a_preempted_one_lost(lines: Lines) -> bool:
    everything = iterations(lines)
    for line in everything:
        flying = everything[line["delivers"]]["scheduled"] if line.get("delivers") is not None else []
        brought = {id for id, phase, _ in flying if phase == "decode"}
        for entry in line["preempted"]:
            if entry["id"] in brought:
                line["discarded"] = [entry["id"]]
                return True
    return False


@breaks("discarded")
def a_token_thrown_away(lines: Lines) -> bool:
    return in_first(lines, "first_token", lambda line: line.update(discarded=line["first_token"][:1]))


# Seats and batches


@breaks("lifecycle")
def a_victim_scheduled_in_the_same_step(lines: Lines) -> bool:
    def edit(line: dict[str, Any]) -> None:
        line["scheduled"].append([line["preempted"][0]["id"], "decode", 1])
        spend(line, 1)

    return in_first(lines, "preempted", edit)


@breaks("lifecycle")
def a_victim_without_a_seat(lines: Lines) -> bool:
    return in_first(lines, "preempted", lambda line: line["preempted"].append(line["preempted"][0]))


@breaks("lifecycle")
def admitted_with_a_seat(lines: Lines) -> bool:
    return in_first(lines, "admitted", lambda line: line["admitted"].append(line["admitted"][0]))


@breaks("active")
def admission_out_of_order(lines: Lines) -> bool:
    for line in iterations(lines):
        stays = [id for id in line["admitted"] if id in line["active"]]
        if len(stays) > 1:
            line["admitted"].reverse()
            return True
    return False


@breaks("active")
def one_with_a_seat_forgotten(lines: Lines) -> bool:
    return in_first(lines, "active", lambda line: line["active"].pop())


@breaks("seats")
def fewer_seats(lines: Lines) -> bool:
    most = max(len(line["active"]) for line in iterations(lines))
    if most < 2:
        return False
    lines[0]["limits"]["max_num_seqs"] = most - 1
    return True


@breaks("progress")
def progress_stated_wrongly(lines: Lines) -> bool:
    def edit(line: dict[str, Any]) -> None:
        line["preempted"][0]["computed"] += 1

    return in_first(lines, "preempted", edit)


@breaks("phase")
def a_prefill_called_decode(lines: Lines) -> bool:
    for line in busy(lines):
        for entry in line["scheduled"]:
            if entry[1] == "prefill":
                entry[1] = "decode"
                return True
    return False


@breaks("phase")
def a_decode_called_prefill(lines: Lines) -> bool:
    for line in busy(lines):
        for entry in line["scheduled"]:
            if entry[1] == "decode":
                entry[1] = "prefill"
                return True
    return False


@breaks("tokens")
def two_tokens_decoded(lines: Lines) -> bool:
    for line in busy(lines):
        for entry in line["scheduled"]:
            if entry[1] == "decode":
                entry[2] = 2
                spend(line, 1)
                return True
    return False


@breaks("tokens")
def more_prefill_than_is_left(lines: Lines) -> bool:
    for line in busy(lines):
        for entry in line["scheduled"]:
            if entry[0] in line["prefill_done"] and entry[1] == "prefill":
                entry[2] += 1
                spend(line, 1)
                return True
    return False


@breaks("tokens")
def twice_in_one_batch(lines: Lines) -> bool:
    def edit(line: dict[str, Any]) -> None:
        line["scheduled"].append(line["scheduled"][0])
        spend(line, line["scheduled"][0][2])

    return in_first(lines, "scheduled", edit)


@breaks("budget")
def a_smaller_budget(lines: Lines) -> bool:
    most = max(sum(tokens for _, _, tokens in line["scheduled"]) for line in iterations(lines))
    if lines[0]["limits"]["max_num_batched_tokens"] is None or most < 2:
        return False
    lines[0]["limits"]["max_num_batched_tokens"] = most - 1
    return True


@breaks("unused")
def unused_counted_wrongly(lines: Lines) -> bool:
    return in_first(lines, "scheduled", lambda line: spend(line, 1))


@breaks("prefill-done")
def a_finished_prefill_forgotten(lines: Lines) -> bool:
    return in_first(lines, "prefill_done", lambda line: line["prefill_done"].pop())


@breaks("first-token")
def a_first_token_forgotten(lines: Lines) -> bool:
    return in_first(lines, "first_token", lambda line: line["first_token"].pop())


@breaks("completed")
def a_completion_forgotten(lines: Lines) -> bool:
    return in_first(lines, "completed", lambda line: line["completed"].pop())


@breaks("model-len")
def longer_than_the_model_takes(lines: Lines) -> bool:
    first = next((line["first_token"][0] for line in iterations(lines) if line["first_token"]), None)
    if first is None:
        return False
    lines[0]["limits"]["max_model_len"] = requests(lines)[first]["prompt"]
    return True


# The queue


@breaks("queue")
def two_that_wait_change_places(lines: Lines) -> bool:
    before: list[str] = []
    for line in iterations(lines):
        queue = line["queue"]
        if isinstance(queue, list):
            if len(queue) > 1 and set(queue[:2]) <= set(before) - set(line["admitted"]):
                if not {entry["id"] for entry in line["preempted"]} & set(queue[:2]):
                    queue[:2] = queue[1::-1]
                    return True
            before = queue
    return False


@breaks("queue")
def one_that_waits_forgotten(lines: Lines) -> bool:
    return in_first(lines, "queue", lambda line: line["queue"].pop())


@breaks("queue-bound")
def a_shorter_queue(lines: Lines) -> bool:
    for line in iterations(lines):
        if set(line["arrived"]) & set(line["queue"]):
            lines[0]["limits"]["max_queue"] = 0
            return True
    return False


# The frame


@breaks("format")
def an_unknown_field(lines: Lines) -> bool:
    iterations(lines)[0]["extra"] = 1
    return True


@breaks("complete")
def no_end(lines: Lines) -> bool:
    lines.pop()
    return True


@breaks("request")
def an_id_given_twice(lines: Lines) -> bool:
    if "requests" not in lines[0]:
        return False
    lines[0]["requests"].append(lines[0]["requests"][0])
    return True


@breaks("lost")
def one_that_never_comes(lines: Lines) -> bool:
    if "requests" not in lines[0] or lines[-1]["termination"] != "all_terminal":
        return False
    late = {"id": "nobody", "arrival": 10**9, "prompt": 1, "output": 1, "max_tokens": 1, "priority": 0}
    lines[0]["requests"].append(late)
    lines[-1]["results"]["pending"] = 1
    return True


@breaks("numbering")
def a_number_skipped(lines: Lines) -> bool:
    iterations(lines)[-1]["iteration"] += 1
    return True


@breaks("clock")
def time_runs_backwards(lines: Lines) -> bool:
    def edit(line: dict[str, Any]) -> None:
        line["start"], line["end"] = line["end"] + 1, line["start"]

    return in_first(lines, "scheduled", edit)


@breaks("arrival")
def seen_before_it_came(lines: Lines) -> bool:
    def edit(line: dict[str, Any]) -> None:
        requests(lines)[line["arrived"][-1]]["arrival"] = line["start"] + 1

    return in_first(lines, "arrived", edit)


@breaks("idle")
def idle_while_working(lines: Lines) -> bool:
    return in_first(lines, "scheduled", lambda line: line.update(idle="drain"))


@breaks("idle")
def idle_without_a_reason(lines: Lines) -> bool:
    return in_first(lines, "idle", lambda line: line.update(idle=None))


@breaks("idle")
def a_note_where_nothing_runs(lines: Lines) -> bool:
    return in_first(lines, "idle", lambda line: line.update(note="so it is"))


@breaks("idle")
def a_drain_while_some_are_there(lines: Lines) -> bool:
    for line in iterations(lines):
        if line["idle"] not in (None, "drain") and (line["active"] or line["queue"] or line["completed"]):
            line["idle"] = "drain"
            return True
    return False


@breaks("jump")
def an_idle_iteration_on_a_clock_that_jumps(lines: Lines) -> bool:
    if lines[0]["clock"]["idle"] != "jump" or lines[-1]["termination"] != "all_terminal":
        return False
    last = iterations(lines)[-1]
    empty = {key: [] if isinstance(value, list) else value for key, value in last.items()}
    for field in ("note", "delivers", "discarded", "dropped"):
        empty.pop(field, None)
    empty |= {"iteration": last["iteration"] + 1, "start": last["end"], "end": last["end"] + 1, "idle": "no work"}
    lines.insert(-1, empty)
    return True


@breaks("limit")
def more_iterations_than_allowed(lines: Lines) -> bool:
    lines[0]["max_iterations"] = len(iterations(lines)) - 1
    return True


@breaks("end")
def iterations_counted_wrongly(lines: Lines) -> bool:
    lines[-1]["iterations"] += 1
    return True


@breaks("results")
def results_counted_wrongly(lines: Lines) -> bool:
    result = next(iter(lines[-1]["results"]))
    lines[-1]["results"][result] += 1
    return True


def _wrong_total(name: str) -> None:
    def edit(lines: Lines) -> bool:
        totals = lines[-1]["totals"]
        totals[name] = 7 if totals[name] is None else totals[name] + 1
        return True

    BREAKS[f"wrong-total-{name}"] = Break(edit, "totals")


for _name in ("retries", "cached_tokens", "moved_blocks", "recomputed_tokens", "decode_stalls"):
    _wrong_total(_name)
