"""vLLM V0: a step is prefills only if any waiting request can be admitted, else every running request decodes.

Memory: a request holds the blocks of its computed tokens. A decode that needs a block when none is free preempts the
latest arrived of those that the step has not passed yet, perhaps itself.
"""

from typing import Any

from reference.engines.common import Job, blocks_for, compute, jobs_of, play


class Engine:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.seats = settings["max_num_seqs"]
        self.budget = settings["max_num_batched_tokens"]
        self.block_size = settings["block_size"]
        self.blocks: int = settings["num_gpu_blocks"]
        self.watermark = int(settings.get("watermark", 0.01) * self.blocks)
        self.mode = settings.get("preemption_mode", "recompute")
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.swapped: list[Job] = []
        self.held: dict[str, int] = {}  # blocks by id; of the swapped ones too, though not on the GPU

    def free(self) -> int:
        return self.blocks - sum(self.held[job.id] for job in self.running)

    def step(self, turn: dict[str, Any], arrived: list[Job]) -> None:
        for job in arrived:
            if blocks_for(job.prompt, self.block_size) > self.blocks - self.watermark:
                job.over = True
                turn["rejected"].append(job.id)
            else:
                self.waiting.append(job)
        plan = self.prefills()
        if not plan:
            plan = self.decodes(turn)
        turn["scheduled"] = [[job.id, tokens] for job, tokens in plan]
        turn["free"] = self.free()
        for job, tokens in plan:
            compute(job, tokens, turn)
        self.running = [job for job in self.running if not job.over]

    def prefills(self) -> list[tuple[Job, int]]:
        plan: list[tuple[Job, int]] = []
        if self.swapped:
            return plan
        budget = self.budget
        while self.waiting and len(self.running) < self.seats:
            job = self.waiting[0]
            need = blocks_for(job.known(), self.block_size)
            if job.known() > budget or self.free() - need < self.watermark:
                break
            self.waiting.pop(0)
            self.held[job.id] = need
            self.running.append(job)
            plan.append((job, job.known()))
            budget -= job.known()
        return plan

    def needs_block(self, job: Job) -> bool:
        return blocks_for(job.computed + 1, self.block_size) > self.held[job.id]

    def decodes(self, turn: dict[str, Any]) -> list[tuple[Job, int]]:
        to_pass = sorted(self.running, key=Job.key)
        plan: list[tuple[Job, int]] = []
        while to_pass:
            job = to_pass[0]
            if self.needs_block(job) and self.free() == 0:
                if blocks_for(job.computed + 1, self.block_size) > self.blocks:
                    self.fail(job, turn)
                    to_pass.remove(job)
                else:
                    victim = to_pass.pop()  # the latest; it may be `job` itself
                    self.preempt(victim, turn)
                continue
            if self.needs_block(job):
                self.held[job.id] += 1
            plan.append((job, 1))
            to_pass.pop(0)
        if not turn["preempted"]:
            plan += self.swap_in()
        return plan

    def fail(self, job: Job, turn: dict[str, Any]) -> None:
        job.over = True
        self.running.remove(job)
        turn["failed"].append(job.id)

    def preempt(self, victim: Job, turn: dict[str, Any]) -> None:
        self.running.remove(victim)
        turn["preempted"].append(victim.id)
        if self.mode == "swap":
            self.swapped.append(victim)
        else:
            victim.computed = 0
            self.waiting.insert(0, victim)

    def swap_in(self) -> list[tuple[Job, int]]:
        plan = []
        for job in sorted(self.swapped, key=Job.key):
            need = self.held[job.id]
            if self.needs_block(job):
                need += 1
            if self.free() - need < self.watermark or len(self.running) == self.seats:
                break
            self.swapped.remove(job)
            self.held[job.id] = need
            self.running.append(job)
            plan.append((job, 1))
        return plan


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return play(jobs_of(requests), Engine(settings).step)
