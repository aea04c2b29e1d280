"""What every reading shares: a request with its progress, the clock, and what is written down for a turn."""

from collections.abc import Callable
from typing import Any

MOST_TURNS = 3000  # far more than any load of the tests needs; a stuck engine stops here


class Job:
    """One request and how far it has come."""

    def __init__(self, request: dict[str, Any], position: int) -> None:
        self.id: str = request["id"]
        self.arrival: int = request["arrival"]
        self.position = position
        self.prompt: int = request["prompt"]
        self.output: int = request["output"]  # the truth, which only `emit` looks at
        self.max_tokens: int = request.get("max_tokens", request["output"])
        self.priority: int = request.get("priority", 1)
        self.deadline: int | None = request.get("deadline")
        self.computed = 0
        self.emitted = 0
        self.over = False  # completed, rejected or failed

    def known(self) -> int:
        return self.prompt + self.emitted

    def in_prefill(self) -> bool:
        return self.computed < self.prompt

    def key(self) -> tuple[int, int]:
        return (self.arrival, self.position)


def new_turn(time: int) -> dict[str, Any]:
    """`failed`: ended without its last token. `free`: KV blocks after the plan; None where none are modelled."""
    return {
        "time": time,
        "rejected": [],
        "preempted": [],
        "failed": [],
        "scheduled": [],
        "padding": 0,
        "completed": [],
        "free": None,
    }


def happened(turn: dict[str, Any]) -> bool:
    lists = ("rejected", "preempted", "failed", "scheduled", "completed")
    return turn["padding"] > 0 or any(turn[name] for name in lists)


def jobs_of(requests: list[dict[str, Any]]) -> list[Job]:
    """In the order in which the engine sees them."""
    jobs = [Job(request, position) for position, request in enumerate(requests)]
    return sorted(jobs, key=Job.key)


def blocks_for(tokens: int, block_size: int) -> int:
    blocks = tokens // block_size
    if tokens % block_size > 0:
        blocks += 1
    return blocks


def compute(job: Job, tokens: int, turn: dict[str, Any]) -> None:
    """The end of a step for one of its requests."""
    job.computed += tokens
    if job.computed == job.known():
        job.emitted += 1
        if job.emitted == job.output:
            job.over = True
            turn["completed"].append(job.id)


def play(jobs: list[Job], step: Callable[[dict[str, Any], list[Job]], None]) -> list[dict[str, Any]]:
    """One turn after another; `step` gets the turn to fill in and who arrives in it."""
    to_come = list(jobs)
    here: list[Job] = []
    turns: list[dict[str, Any]] = []
    time = 0
    for _ in range(MOST_TURNS):
        if all(job.over for job in here):
            if not to_come:
                return turns
            time = max(time, to_come[0].arrival)
        arrived = []
        while to_come and to_come[0].arrival <= time:
            arrived.append(to_come.pop(0))
        here += arrived
        turn = new_turn(time)
        step(turn, arrived)
        if happened(turn):
            turns.append(turn)
        time += 1
    return turns
