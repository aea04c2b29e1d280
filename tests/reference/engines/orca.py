"""Orca, Algorithm 1: first come, first served, room for the whole request reserved at its first iteration.

The pool holds all unfinished requests in arrival order. A request in flight is passed over. One that never ran needs
its prompt and max_tokens to fit beside what is reserved; if they do not, the walk stops there. A prompt runs whole.
`n_workers` batches are in flight: turn k plans batch k, then batch k - n_workers + 1 is delivered.
"""

from typing import Any

from reference.engines.common import Job, compute, jobs_of, play


class Engine:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.max_bs = settings["max_bs"]
        self.n_slots = settings["n_slots"]
        self.n_workers = settings.get("n_workers", 1)
        self.pool: list[Job] = []
        self.begun: list[Job] = []
        self.batches: list[list[tuple[Job, int]]] = []

    def step(self, turn: dict[str, Any], arrived: list[Job]) -> None:
        for job in arrived:
            if need(job) > self.n_slots:
                job.over = True
                turn["rejected"].append(job.id)
            else:
                self.pool.append(job)
        batch = self.select()
        turn["scheduled"] = [[job.id, tokens] for job, tokens in batch]
        turn["free"] = self.n_slots - self.reserved()
        self.batches.append(batch)
        if len(self.batches) == self.n_workers:
            for job, tokens in self.batches.pop(0):
                compute(job, tokens, turn)
        self.pool = [job for job in self.pool if not job.over]

    def reserved(self) -> int:
        return sum(need(job) for job in self.begun if not job.over)

    def select(self) -> list[tuple[Job, int]]:
        in_flight = [job for batch in self.batches for job, _ in batch]
        batch: list[tuple[Job, int]] = []
        for job in self.pool:
            if len(batch) == self.max_bs:
                break
            if job in in_flight:
                continue
            if job not in self.begun:
                if self.reserved() + need(job) > self.n_slots:
                    break
                self.begun.append(job)
            batch.append((job, job.prompt if job.in_prefill() else 1))
        return batch


def need(job: Job) -> int:
    return job.prompt + job.max_tokens


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return play(jobs_of(requests), Engine(settings).step)
