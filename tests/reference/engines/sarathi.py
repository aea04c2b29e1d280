"""Sarathi-Serve, stall-free batching: within the token budget every decode, then prefills begun, then new requests."""

from typing import Any

from reference.engines.common import Job, compute, jobs_of, play


class Engine:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.seats = settings["max_num_seqs"]
        self.token_budget = settings["token_budget"]
        self.waiting: list[Job] = []
        self.running: list[Job] = []

    def step(self, turn: dict[str, Any], arrived: list[Job]) -> None:
        self.waiting += arrived
        budget = self.token_budget
        plan: list[tuple[Job, int]] = []
        for job in self.running:
            if not job.in_prefill() and budget > 0:
                plan.append((job, 1))
                budget -= 1
        for job in self.running:
            if job.in_prefill() and budget > 0:
                tokens = min(job.prompt - job.computed, budget)
                plan.append((job, tokens))
                budget -= tokens
        while self.waiting and len(self.running) < self.seats and budget > 0:
            job = self.waiting.pop(0)
            self.running.append(job)
            tokens = min(job.prompt, budget)
            plan.append((job, tokens))
            budget -= tokens
        for job, tokens in plan:
            turn["scheduled"].append([job.id, tokens])
            compute(job, tokens, turn)
        self.running = [job for job in self.running if not job.over]


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return play(jobs_of(requests), Engine(settings).step)
