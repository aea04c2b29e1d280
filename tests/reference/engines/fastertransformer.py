"""FasterTransformer as the Orca paper describes it: a batch at a time, from the shortest prompt to the longest end.

When idle, take the earliest requests, at most `max_bs`. The first step computes as many tokens of each prompt as the
shortest one has; then each member gets one token a step, first of its prompt, then of its output. Members that have
ended cost one padding token a step until the last one has ended.
"""

from typing import Any

from reference.engines.common import Job, compute, jobs_of, play


class Engine:
    def __init__(self, max_bs: int) -> None:
        self.max_bs = max_bs
        self.waiting: list[Job] = []
        self.batch: list[Job] = []

    def step(self, turn: dict[str, Any], arrived: list[Job]) -> None:
        self.waiting += arrived
        tokens = 1
        if not self.batch:
            self.batch = self.waiting[: self.max_bs]
            self.waiting = self.waiting[self.max_bs :]
            tokens = min((job.prompt for job in self.batch), default=0)
        members = [job for job in self.batch if not job.over]
        turn["padding"] = len(self.batch) - len(members)
        for job in members:
            turn["scheduled"].append([job.id, tokens])
            compute(job, tokens, turn)
        if all(job.over for job in self.batch):
            self.batch = []


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return play(jobs_of(requests), Engine(settings["max_bs"]).step)
