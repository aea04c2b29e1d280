"""TensorRT-LLM: the capacity scheduler says who fits in memory, the micro batch scheduler who of them gets tokens.

The active list is all unfinished requests in arrival order, waiting ones included; a paused one keeps its place. A
request has started if it is in generation or past its first chunk. Its first chunk takes the blocks for its whole
prompt, after a pause for prompt and generated tokens.
"""

from typing import Any

from reference.engines.common import Job, blocks_for, compute, jobs_of, play

Plan = list[tuple[Job, int]]


class Engine:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.policy = settings["capacity_scheduler_policy"]
        self.most_requests = settings["max_batch_size"]
        self.most_tokens = settings["max_num_tokens"]  # None: unlimited
        self.tokens_per_block = settings["tokens_per_block"]
        self.blocks = settings["num_blocks"]
        self.chunked = settings["enable_chunked_context"]
        self.chunking = settings["context_chunking_policy"]
        self.unit = settings["chunk_unit_size"] or self.tokens_per_block
        self.active: list[Job] = []
        self.held: dict[str, int] = {}  # blocks by id; absent: none
        self.context: dict[str, int] = {}  # length of the context by id: the prompt, after a pause more

    def step(self, turn: dict[str, Any], arrived: list[Job]) -> None:
        for job in arrived:
            self.take_in(job, turn)
        if self.policy == "MAX_UTILIZATION":
            fitting = self.max_utilization(turn)
        else:
            fitting = self.no_evict()
        plan = self.micro_batch(fitting)
        for job, tokens in plan:
            self.take_blocks(job)
            turn["scheduled"].append([job.id, tokens])
        turn["free"] = self.free()
        for job, tokens in plan:
            compute(job, tokens, turn)
        for job in self.active:
            if job.over:
                self.held.pop(job.id, None)
        self.active = [job for job in self.active if not job.over]

    def take_in(self, job: Job, turn: dict[str, Any]) -> None:
        tokens = job.prompt
        if self.policy != "MAX_UTILIZATION":
            tokens += job.max_tokens
        if self.blocks_of(tokens) > self.blocks:
            job.over = True
            turn["rejected"].append(job.id)
        else:
            self.active.append(job)
            self.context[job.id] = job.prompt

    def blocks_of(self, tokens: int) -> int:
        return blocks_for(tokens, self.tokens_per_block)

    def free(self) -> int:
        return int(self.blocks - sum(self.held.values()))

    def in_generation(self, job: Job) -> bool:
        return job.computed >= self.context[job.id]

    def started(self, job: Job) -> bool:
        return job.computed > 0

    def take_blocks(self, job: Job) -> None:
        self.held[job.id] = self.held.get(job.id, 0) + self.need_one_step(job)

    def need_one_step(self, job: Job) -> int:
        if self.in_generation(job):
            add = min(1, job.max_tokens - (job.emitted - 1))
            return self.blocks_of(job.computed + add) - self.blocks_of(job.computed)
        if job.computed == 0:
            return self.blocks_of(self.context[job.id])
        return 0

    def remain(self, job: Job) -> int:
        return self.blocks_of(job.prompt + job.max_tokens) - self.held.get(job.id, 0)

    # Capacity schedulers: who fits, in order.

    def no_evict(self) -> list[Job]:
        """GUARANTEED_NO_EVICT and STATIC_BATCH."""
        available = self.free()
        fitting: list[Job] = []
        pending: list[Job] = []
        for job in self.active:
            if len(fitting) == self.most_requests:
                break
            if self.in_generation(job):
                fitting.append(job)
                available -= self.remain(job)
            else:
                pending.append(job)
        if self.policy == "STATIC_BATCH" and fitting:
            return fitting
        for job in pending:
            if len(fitting) == self.most_requests or self.remain(job) > available:
                break
            fitting.append(job)
            available -= self.remain(job)
        return fitting

    def max_utilization(self, turn: dict[str, Any]) -> list[Job]:
        walk = list(self.active)
        fitting: list[Job] = []
        needed = 0
        at = 0
        while at < len(walk):
            job = walk[at]
            need = self.need_one_step(job)
            if len(fitting) < self.most_requests and needed + need <= self.free():
                fitting.append(job)
                needed += need
                at += 1
                continue
            started = [other for other in walk[at:] if self.started(other)]
            if not started:
                break
            victim = started[-1]
            del self.held[victim.id]
            if self.blocks_of(victim.known()) > self.blocks:  # it has all of the memory: nobody else has started
                victim.over = True
                turn["failed"].append(victim.id)
                walk.remove(victim)  # it has ended and was not paused: those behind it stay in this step
            else:
                self.pause(victim, turn)
                walk = walk[: walk.index(victim)]
        return fitting

    def pause(self, job: Job, turn: dict[str, Any]) -> None:
        job.computed = 0
        self.context[job.id] = job.known()
        turn["preempted"].append(job.id)

    # The micro batch scheduler: who of the fitting ones gets how many tokens.

    def micro_batch(self, fitting: list[Job]) -> Plan:
        contexts: Plan = []
        to_chunk: list[Job] = []
        generations: Plan = []
        tokens = 0
        for job in fitting:
            if self.in_generation(job):
                if self.passes(tokens + 1):
                    break
                generations.append((job, 1))
                tokens += 1
            elif self.chunked:
                to_chunk.append(job)
            else:
                whole = self.context[job.id]
                if self.passes(tokens + whole):
                    break
                contexts.append((job, whole))
                tokens += whole
            if len(contexts) + len(to_chunk) + len(generations) == self.most_requests:
                break
        contexts += self.chunks(to_chunk, tokens)
        last = [(job, n) for job, n in contexts if n == self.left(job)]
        not_last = [(job, n) for job, n in contexts if n != self.left(job)]
        return not_last + last + generations

    def passes(self, tokens: int) -> bool:
        return self.most_tokens is not None and tokens > self.most_tokens

    def left(self, job: Job) -> int:
        return self.context[job.id] - job.computed

    def chunks(self, to_chunk: list[Job], tokens: int) -> Plan:
        wanted = sum(self.left(job) for job in to_chunk)
        if not self.passes(tokens + wanted):
            sizes = [self.left(job) for job in to_chunk]
        elif self.chunking == "EQUAL_PROGRESS":
            sizes = self.equal_progress(to_chunk, self.most_tokens - tokens)
        else:
            sizes = self.first_come(to_chunk, self.most_tokens - tokens)
        return [(job, size) for job, size in zip(to_chunk, sizes, strict=True) if size > 0]

    def first_come(self, to_chunk: list[Job], capacity: int) -> list[int]:
        sizes = []
        for job in to_chunk:
            size = self.left(job)
            if size > capacity:
                size = capacity - capacity % self.unit
            sizes.append(size)
            capacity -= size
        return sizes

    def equal_progress(self, to_chunk: list[Job], capacity: int) -> list[int]:
        sizes = [0] * len(to_chunk)
        added = True
        while added:
            added = False
            for number, job in enumerate(to_chunk):
                more = min(self.unit, self.left(job) - sizes[number])
                if 0 < more <= capacity:
                    sizes[number] += more
                    capacity -= more
                    added = True
        return sizes


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return play(jobs_of(requests), Engine(settings).step)
