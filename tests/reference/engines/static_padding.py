"""Static batching with padding.

A batch of the earliest waiting requests is formed when nothing is active. A step gives decodes a token each, then whole
prompts that fit the budget left. Padding `batch`: ended members cost a token a step until the last one has ended.
Padding `all`: the batch starts when all requests of the run are there, and goes on until it has decoded as long as the
longest output that any of them may have.
"""

from typing import Any

from reference.engines.common import Job, compute, jobs_of, play


class Engine:
    def __init__(self, settings: dict[str, Any], jobs: list[Job]) -> None:
        self.settings = settings
        self.padding = settings["padding"]
        self.jobs = jobs
        self.missing = len(jobs)
        self.waiting: list[Job] = []
        self.batch: list[Job] = []
        self.steps_since_prefill = 0

    def step(self, turn: dict[str, Any], arrived: list[Job]) -> None:
        self.waiting += arrived
        self.missing -= len(arrived)
        if not self.batch:
            self.form()
        members = [job for job in self.batch if not job.over]
        if self.padding != "none":
            turn["padding"] = len(self.batch) - len(members)
        plan = self.plan(members)
        if any(job.in_prefill() for job in members):
            self.steps_since_prefill = 0  # the last prefill is this step or a later one
        else:
            self.steps_since_prefill += 1
        for job, tokens in plan:
            turn["scheduled"].append([job.id, tokens])
        for job, tokens in plan:
            compute(job, tokens, turn)
        if self.batch_is_over():
            self.batch = []

    def form(self) -> None:
        if self.padding == "all" and self.missing > 0:
            return
        while self.waiting and len(self.batch) < self.settings["max_num_seqs"]:
            self.batch.append(self.waiting.pop(0))

    def plan(self, members: list[Job]) -> list[tuple[Job, int]]:
        budget = self.settings["max_num_batched_tokens"]
        plan = []
        for job in members:
            if not job.in_prefill() and budget > 0:
                plan.append((job, 1))
                budget -= 1
        for job in members:
            if job.in_prefill() and job.prompt <= budget:
                plan.append((job, job.prompt))
                budget -= job.prompt
        return plan

    def batch_is_over(self) -> bool:
        if not all(job.over for job in self.batch):
            return False
        if self.padding != "all":
            return True
        longest = max(job.max_tokens for job in self.jobs)
        return self.steps_since_prefill >= longest - 1


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The clock stops with the last request: what its batch would still pad is nobody's wait."""
    jobs = jobs_of(requests)
    return play(jobs, Engine(settings, jobs).step)
