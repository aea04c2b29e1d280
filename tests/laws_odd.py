"""A policy that does odd but allowed things, to see that the core keeps its laws whatever a policy does."""

from random import Random
from typing import Any

from batchlab.core.work import Refusal

VERBS = ["admit", "schedule", "schedule", "preempt", "preempt", "enqueue", "reject", "fail"]


class Odd:
    """Calls every verb in any order on any request, living or dead. Calms down in the end, so that runs end.

    After every call it looks whether the limits hold and whether a refused call left everything as it was.
    """

    rules = "none"

    def __init__(self, seed: int, requests: int, may_stall: bool) -> None:
        self.rng = Random(f"odd {seed}")
        self.calm_after = self.rng.choice([0, 3, 10, 30])
        self.to_come = set(range(requests))
        self.may_stall = may_stall
        self.met: list[Any] = []
        self.known = 0
        self.quiet = 0  # plans in a row before which no token appeared; in the third it looks like a livelock

    def on_arrival(self, seq: Any, view: Any, batch: Any) -> None:
        self.to_come.discard(seq.position)
        self.met.append(seq)
        if self.rng.random() < 0.2:
            self.any_verb(view, batch, seq)
        for _ in range(self.rng.choice([0, 1, 1, 2, 4])):
            self.any_verb(view, batch, seq if self.rng.random() < 0.7 else None)
        if seq.at_the_door and self.call(view, batch, batch.enqueue, seq):
            assert batch.queue_left is not None and batch.queue_left <= 0
            batch.reject(seq, "queue full")

    def plan(self, view: Any, batch: Any) -> str | None:
        rng = self.rng
        self.calm_after -= 1
        known = sum(seq.known for seq in self.met)
        self.quiet = self.quiet + 1 if known == self.known else 0
        self.known = known
        if self.calm_after > 0:
            for _ in range(rng.choice([0, 1, 3, 8])):
                self.any_verb(view, batch)
            if rng.random() < 0.7:
                self.bulk(view, batch)
            for _ in range(rng.choice([0, 0, 1, 5])):
                self.any_verb(view, batch)
            if batch.entries or self.may_stall or self.to_come:
                return rng.choice([None, "waiting for better times"])
        self.calm(view, batch)
        return None

    def calm(self, view: Any, batch: Any) -> None:
        """What any engine does. Where blocks are missing for everybody, all but the first give theirs back."""
        self.call(view, batch, batch.admit_waiting)
        self.decode_all(view, batch)
        self.call(view, batch, batch.prefill_all, self.rng.choice([None, 1, 4]))
        if not batch.entries and view.running:
            first, *others = view.running
            for seq in reversed(others):
                self.call(view, batch, batch.preempt, seq, "recompute", "front")
            if self.call(view, batch, batch.schedule, first, 1) is Refusal.BLOCKS:
                self.call(view, batch, batch.fail, first, "too large for the pool")

    def decode_all(self, view: Any, batch: Any) -> None:
        """Says whose blocks are missing: that one has not been scheduled, and nothing else is lost."""
        missing = batch.decode_all()
        assert missing is None or (missing in view.decoding and missing not in [seq for seq, _, _ in batch.entries])
        self.check_limits(view, batch)

    def bulk(self, view: Any, batch: Any) -> None:
        verbs = ["decode", "admit", "prefill"]
        self.rng.shuffle(verbs)
        for verb in verbs[: self.rng.choice([1, 2, 3, 3])]:
            if verb == "decode":
                self.decode_all(view, batch)
            else:
                self.call(view, batch, batch.admit_waiting if verb == "admit" else batch.prefill_all)

    def any_verb(self, view: Any, batch: Any, seq: Any = None) -> None:
        rng = self.rng
        if seq is None:
            pool = rng.choice([view.running, list(view.waiting), self.met])
            if not pool:
                return
            seq = rng.choice(pool)
        verb = rng.choice(VERBS)
        if verb == "admit":
            self.call(view, batch, batch.admit, seq)
        elif verb == "schedule":
            self.call(view, batch, batch.schedule, seq, rng.choice([None, None, 0, 1, 2, 7]))
        elif verb == "preempt" and self.quiet < 2:
            how = rng.choice(["keep", "recompute", "swap"]), rng.choice(["front", "back", "key"])
            self.call(view, batch, batch.preempt, seq, *how)
        elif verb == "enqueue":
            self.call(view, batch, batch.enqueue, seq)
        elif verb == "reject" and rng.random() < 0.3:
            self.call(view, batch, batch.reject, seq, rng.choice(["not today", "queue full", "🙈\n"]))
        elif verb == "fail" and rng.random() < 0.05 and (seq.waiting or seq.running):
            self.call(view, batch, batch.fail, seq, "hopeless")

    def call(self, view: Any, batch: Any, verb: Any, *arguments: Any) -> Any:
        before = self.look(view, batch)
        dead = arguments and getattr(arguments[0], "ended", False)
        answer = verb(*arguments)
        if answer is not None:
            assert isinstance(answer, Refusal)
            changed = self.look(view, batch) != before
            assert not changed, f"{verb.__name__} was refused ({answer}) but changed something"
        assert answer is not None or not dead, f"{verb.__name__} of a finished request was not refused"
        self.check_limits(view, batch)
        return answer

    @staticmethod
    def check_limits(view: Any, batch: Any) -> None:
        limits = view.limits
        assert limits.max_num_seqs is None or len(view.running) <= limits.max_num_seqs
        tokens = sum(tokens for _, _, tokens in batch.entries)
        assert limits.max_num_batched_tokens is None or limits.max_num_batched_tokens == tokens + batch.tokens_left
        assert batch.tokens_left is None or batch.tokens_left >= 0
        names = [seq.id for seq, _, _ in batch.entries]
        assert len(set(names)) == len(names)
        if limits.num_gpu_blocks is not None and not limits.enable_prefix_caching:
            assert batch.free_blocks + sum(seq.held for seq in view.running) == batch.total_blocks
        assert batch.free_blocks >= 0 and not any(seq.held for seq in view.waiting)

    @staticmethod
    def look(view: Any, batch: Any) -> Any:
        entries = [(seq.id, phase, tokens) for seq, phase, tokens in batch.entries]
        lists = [[seq.id for seq in seqs] for seqs in (view.running, view.waiting, batch.admitted)]
        ends = len(batch.preempted), len(batch.rejected), len(batch.dropped)
        return lists, entries, batch.tokens_left, batch.free_blocks, ends
