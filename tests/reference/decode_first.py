"""The policy `decode-first`, read literally from its rules.

Every iteration, idle ones too, runs the same five steps: arrivals, seats for the waiting, decode,
prefill, departures. Nothing here is meant to be fast.
"""

from typing import Any

PRIORITY_NAMES = {"high": 0, "normal": 1}


class Job:
    """One request and how far it has come."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.id = request["id"]
        self.arrival = request["arrival"]
        self.priority = priority_number(request["priority"])
        self.prompt_left = request["prompt"]
        self.output_left = request["output"]
        self.first_output: int | None = None
        self.completed: int | None = None
        self.preemptions = 0
        self.result = "pending"

    def work_left(self) -> int:
        return self.prompt_left + self.output_left

    def emit(self, iteration: int) -> None:
        if self.first_output is None:
            self.first_output = iteration
        self.output_left -= 1


def priority_number(priority: int | str) -> int:
    if isinstance(priority, int):
        return priority
    if priority not in PRIORITY_NAMES:
        raise ValueError(f"unknown priority {priority!r}")
    return PRIORITY_NAMES[priority]


def check(limits: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    if not 0 < limits["max_num_seqs"] <= limits["max_num_batched_tokens"]:
        raise ValueError("max_num_seqs must be above 0 and at most max_num_batched_tokens")
    if limits["max_queue"] < 0:
        raise ValueError("max_queue must not be negative")
    if limits["prefill_chunk"] < 1:
        raise ValueError("prefill_chunk must be at least 1")
    if limits["max_iterations"] < 1:
        raise ValueError("max_iterations must be at least 1")
    seen = []
    for request in requests:
        check_request(request)
        if request["id"] in seen:
            raise ValueError(f"id {request['id']!r} appears twice")
        seen.append(request["id"])


def check_request(request: dict[str, Any]) -> None:
    if request["prompt"] < 1 or request["output"] < 1:
        raise ValueError(f"request {request['id']!r}: lengths must be at least 1")
    if request["arrival"] < 0 or request["arrival"] != int(request["arrival"]):
        raise ValueError(f"request {request['id']!r}: arrival must be a whole number, 0 or more")


class Run:
    """The state of one run: the seats, the queue and the records made so far."""

    def __init__(self, limits: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.limits = limits
        self.jobs = [Job(request) for request in requests]
        self.active: list[Job] = []
        self.queue: list[Job] = []
        self.trace: list[dict[str, Any]] = []
        self.longest_queue = 0

    def all_terminal(self) -> bool:
        return all(job.result in ("completed", "rejected") for job in self.jobs)

    def seat_free(self) -> bool:
        return len(self.active) < self.limits["max_num_seqs"]

    def queue_has_room(self) -> bool:
        return len(self.queue) < self.limits["max_queue"]

    def seat(self, job: Job) -> None:
        self.active.append(job)
        job.result = "active"

    def note_queue_length(self) -> None:
        self.longest_queue = max(self.longest_queue, len(self.queue))

    def iterate(self, iteration: int) -> None:
        record = self.new_record(iteration)
        for job in self.jobs:
            if job.arrival == iteration:
                self.arrive(job, record)
        self.seat_the_waiting()
        budget = self.limits["max_num_batched_tokens"]
        budget = self.decode(iteration, budget, record)
        budget = self.prefill(iteration, budget, record)
        self.depart(iteration, record)
        record["queue"] = [job.id for job in self.queue]
        record["active"] = [job.id for job in self.active]
        record["unused_budget"] = budget
        self.trace.append(record)

    def new_record(self, iteration: int) -> dict[str, Any]:
        lists = ["decode", "prefill", "prefill_emitted", "preempted", "rejected", "completed"]
        record: dict[str, Any] = {"iteration": iteration}
        for name in lists:
            record[name] = []
        return record

    def arrive(self, job: Job, record: dict[str, Any]) -> None:
        if not self.limits.get("arrivals_first", True):
            self.seat_the_waiting()
        if self.seat_free():
            self.seat(job)
            return
        victim = self.find_victim(job)
        if victim is not None:
            self.preempt(victim, record)
            self.seat(job)
        elif self.queue_has_room():
            self.queue.append(job)
            job.result = "waiting"
        else:
            job.result = "rejected"
            record["rejected"].append(job.id)
        self.note_queue_length()

    def find_victim(self, newcomer: Job) -> Job | None:
        if not self.limits["priority_preemption"] or not self.queue_has_room():
            return None
        victim = None
        for job in self.active:
            if job.priority <= newcomer.priority:
                continue
            if victim is None or job.work_left() > victim.work_left():
                victim = job
        return victim

    def preempt(self, victim: Job, record: dict[str, Any]) -> None:
        self.active.remove(victim)
        self.queue.insert(0, victim)
        victim.result = "waiting"
        victim.preemptions += 1
        record["preempted"].append(victim.id)

    def seat_the_waiting(self) -> None:
        while self.queue and self.seat_free():
            self.seat(self.queue.pop(0))

    def decode(self, iteration: int, budget: int, record: dict[str, Any]) -> int:
        for job in self.active:
            if job.prompt_left == 0 and budget > 0:
                job.emit(iteration)
                budget -= 1
                record["decode"].append(job.id)
        return budget

    def prefill(self, iteration: int, budget: int, record: dict[str, Any]) -> int:
        for job in self.active:
            tokens = min(self.limits["prefill_chunk"], job.prompt_left, budget)
            if tokens == 0:
                continue
            job.prompt_left -= tokens
            budget -= tokens
            record["prefill"].append([job.id, tokens])
            if job.prompt_left == 0:
                job.emit(iteration)
                record["prefill_emitted"].append(job.id)
        return budget

    def depart(self, iteration: int, record: dict[str, Any]) -> None:
        staying = []
        for job in self.active:
            if job.output_left > 0:
                staying.append(job)
                continue
            job.completed = iteration
            job.result = "completed"
            record["completed"].append(job.id)
        self.active = staying

    def summary(self) -> dict[str, dict[str, Any]]:
        fields = ["first_output", "completed", "preemptions", "result"]
        return {job.id: {field: getattr(job, field) for field in fields} for job in self.jobs}


def run(limits: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    check(limits, requests)
    state = Run(limits, requests)
    iteration = 0
    while not state.all_terminal() and iteration < limits["max_iterations"]:
        state.iterate(iteration)
        iteration += 1
    return {
        "termination": "all_terminal" if state.all_terminal() else "iteration_limit",
        "trace": state.trace,
        "requests": state.summary(),
        "max_queue_length": state.longest_queue,
        "preemptions": sum(job.preemptions for job in state.jobs),
        "rejections": sum(job.result == "rejected" for job in state.jobs),
        "unused_budget": [record["unused_budget"] for record in state.trace],
    }
