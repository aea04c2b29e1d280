"""Triton's dynamic batcher: whole batches, formed in a delay window, one at a time on one instance.

Every request has size 1, no batch grows after it was sent, and shapes do not matter. Times are ns. A batch takes one
step for all its prompts, then decode steps until its last member has ended; meanwhile no other batch is formed.
"""

from typing import Any

from reference.engines.common import Job, jobs_of

POLICY: dict[str, Any] = {
    "timeout_action": "REJECT",
    "default_timeout_microseconds": 0,
    "allow_timeout_override": False,
    "max_queue_size": 0,
}


class Level:
    """The queue of one priority level: those whose time is not over, and those that were put behind them."""

    def __init__(self, policy: dict[str, Any]) -> None:
        self.policy = POLICY | policy
        self.unexpired: list[Job] = []
        self.delayed: list[Job] = []

    def is_full(self) -> bool:
        most = self.policy["max_queue_size"]
        return bool(most != 0 and len(self.unexpired) + len(self.delayed) >= most)

    def expires(self, job: Job) -> int | None:
        timeout = self.policy["default_timeout_microseconds"] * 1000
        if self.policy["allow_timeout_override"] and job.deadline is not None:
            if job.deadline != 0 and job.deadline < timeout:
                timeout = job.deadline
        return None if timeout == 0 else job.arrival + timeout


class Server:
    def __init__(self, settings: dict[str, Any], requests: list[dict[str, Any]]) -> None:
        self.max_batch_size = settings["max_batch_size"]
        self.preferred = settings.get("preferred_batch_size") or [self.max_batch_size]
        self.delay = settings.get("max_queue_delay_microseconds", 0) * 1000
        self.cost = settings["cost"]
        self.number_of_levels = settings.get("priority_levels", 0)
        self.default_level = settings.get("default_priority_level", 0)
        self.levels: dict[int, Level] = {}
        own = settings.get("priority_queue_policy", {})
        for number in range(1, max(1, self.number_of_levels) + 1):
            self.levels[number] = Level(own.get(number, settings.get("default_queue_policy", {})))
        self.to_come = jobs_of(requests)
        self.result: dict[str, list[Any]] = {"batches": [], "rejected": []}

    def level_of(self, job: Job) -> Level:
        if self.number_of_levels == 0:
            return self.levels[1]
        if 1 <= job.priority <= self.number_of_levels:
            return self.levels[job.priority]
        return self.levels[self.default_level]

    def arrivals(self, now: int) -> None:
        while self.to_come and self.to_come[0].arrival <= now:
            job = self.to_come.pop(0)
            level = self.level_of(job)
            if level.is_full():
                self.result["rejected"].append([job.id, "max_queue_size", None])
            else:
                level.unexpired.append(job)

    def reach(self, now: int, taken: list[Job]) -> Job | None:
        """The next request behind those taken; whoever the cursor finds expired is rejected or put behind."""
        for number in sorted(self.levels):
            level = self.levels[number]
            for job in list(level.unexpired):
                if job in taken:
                    continue
                deadline = level.expires(job)
                if deadline is None or now < deadline:
                    return job
                level.unexpired.remove(job)
                if level.policy["timeout_action"] == "DELAY":
                    level.delayed.append(job)
                else:
                    self.result["rejected"].append([job.id, "timeout", now])
            for job in level.delayed:
                if job not in taken:
                    return job
        return None

    def decide(self, now: int) -> tuple[list[Job], int | None]:
        """A batch to send; or, with none, the time until which to wait, None for the next arrival."""
        pending: list[Job] = []
        best = 0
        send_now = False
        while True:
            following = self.reach(now, pending)
            if following is None:
                break
            if pending:
                if len(pending) + 1 > max(self.preferred) and best == 0:
                    best = len(pending)
                if len(pending) + 1 > self.max_batch_size:
                    send_now = True
                    break
            pending.append(following)
            if len(pending) in self.preferred:
                best = len(pending)
        if not pending:
            return [], None
        oldest = min(job.arrival for job in pending)
        exceeded = self.delay != 0 and now - oldest >= self.delay
        if best > 0 and not exceeded:
            return pending[:best], None
        if send_now or len(pending) >= max(self.preferred):
            return pending, None
        if exceeded or self.delay == 0:
            return pending, None
        return [], self.wake(pending, oldest + self.delay)

    def wake(self, pending: list[Job], window_ends: int) -> int:
        times = [window_ends]
        for job in pending:
            level = self.level_of(job)
            deadline = level.expires(job)
            if job in level.unexpired and deadline is not None:
                times.append(deadline)
        return min(times)

    def step_time(self, token_cost: str, tokens: int) -> int:
        return int(max(1, self.cost["per_iteration"] + self.cost[token_cost] * tokens))

    def execute(self, batch: list[Job], now: int) -> int:
        for job in batch:
            level = self.level_of(job)
            queue = level.unexpired if job in level.unexpired else level.delayed
            queue.remove(job)
        self.result["batches"].append([now, [job.id for job in batch]])
        now += self.step_time("prefill_token", sum(job.prompt for job in batch))
        for emitted in range(1, max(job.output for job in batch)):
            still_running = [job for job in batch if job.output > emitted]
            now += self.step_time("decode_token", len(still_running))
        return now


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """`batches`: [start, ids in order]; `rejected`: [id, reason, time of judgement, None where that is the arrival]."""
    server = Server(settings, requests)
    now = 0
    while True:
        server.arrivals(now)
        batch, wake = server.decide(now)
        if batch:
            now = server.execute(batch, now)
            continue
        times = [] if wake is None else [wake]
        if server.to_come:
            times.append(server.to_come[0].arrival)
        if not times:
            return server.result
        now = min(times)
