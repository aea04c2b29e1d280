"""Policies of users for the quick path and the plain one: they use every verb in any order.

Each writes down what it sees, so that two runs of one seed can be compared.
"""

from random import Random
from typing import Any

from batchlab.core.work import Refusal, Wait
from batchlab.policies.base import Policy

MODES = ["keep", "recompute", "swap"]
PLACES = ["front", "back", "key"]


class User:
    """What they have in common: dice of their own, and a book of what they see."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.turns = 0
        self.saw: list[Any] = []
        self.met: list[Any] = []
        self.chunk = rng.choice([None, 1, 3, 16])
        self.holds = rng.choice(["computed"] * 4 + ["prompt", "max"])
        self.batching = rng.choice(["iteration"] * 5 + ["request"])
        self.pipeline_stages = rng.choice([1] * 6 + [3])
        self.steps_in_flight = rng.choice([1] * 12 + [2])

    def plan(self, view: Any, batch: Any) -> Any:
        self.turns += 1
        return self.build(view, batch)

    def build(self, view: Any, batch: Any) -> Any:
        raise NotImplementedError

    def serve(self, view: Any, batch: Any) -> None:
        """What any engine does: those that run, with room made for them, then the queue."""
        short = batch.schedule_running(self.chunk)
        while short is not None:
            if view.num_running == 1 or self.rng.random() < 0.1:
                batch.fail(short, "no room")
            else:
                batch.preempt(view.running[-1], self.rng.choice(MODES), self.rng.choice(PLACES))
            short = batch.schedule_running(self.chunk)
        if not batch.preempted and batch.schedule_waiting(self.chunk) is Refusal.BLOCKS and batch.empty:
            batch.fail(view.waiting.head, "larger than the pool")

    def note(self, *what: Any) -> None:
        self.saw.append((self.turns, *what))

    def look(self, view: Any, batch: Any, at: list[Any]) -> None:
        """Write down all that can be seen of these and of the batch."""
        batch_now = batch.tokens_left, batch.seats_left, batch.queue_left, batch.unused, batch.free_blocks, batch.empty
        self.note(view.now, view.num_running, batch_now, batch.estimate(), [seen(seq) for seq in at])


def seen(seq: Any) -> tuple[Any, ...]:
    """Every figure of a sequence."""
    figures = seq.computed, seq.known, seq.held, seq.scheduled, seq.left, seq.generated, seq.prefill_left
    states = seq.waiting, seq.running, seq.ended, seq.at_the_door
    fixed = seq.id, seq.prompt_tokens, seq.max_tokens, seq.priority, seq.sent, seq.deadline, seq.order
    return (*fixed, *figures, seq.remaining_work, seq.prefill_target, seq.preemptions, *states)


class ShortestPromptFirst(User):
    """The example for those who write a policy."""

    def build(self, view: Any, batch: Any) -> None:
        batch.decode_all()
        for seq in view.prefilling:
            batch.schedule(seq, self.chunk)
        for seq in sorted(view.waiting, key=lambda s: (s.prompt_tokens, s.arrival, s.position)):
            if batch.schedule(seq, self.chunk):
                break
        if batch.empty:
            self.serve(view, batch)


class EveryOther(User):
    """Decodes in every second step only; in the others prompts, or nothing at all."""

    def build(self, view: Any, batch: Any) -> Any:
        if self.turns % 2:
            return self.serve(view, batch)
        if self.rng.random() < 0.6:
            batch.prefill_all(self.chunk)
            batch.schedule_waiting(self.chunk)
        return Wait("every other step", view.now + self.rng.choice([1, 2, 50])) if batch.empty else None


class Singles(User):
    """Gives decodes their tokens one by one, always or now and then."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.every = rng.choice([1, 2, 5])

    def build(self, view: Any, batch: Any) -> None:
        if self.turns % self.every == 0:
            some = view.decoding
            for seq in some[:: self.rng.choice([1, -1, 2])]:
                self.note(seq.id, batch.schedule(seq))
        self.serve(view, batch)


class Evictor(User):
    """Takes a seat away at random, behind decode_all, and perhaps gives it back at once."""

    def build(self, view: Any, batch: Any) -> None:
        short = batch.decode_all()
        if view.running and self.rng.random() < 0.3:
            for victim in self.rng.sample(view.running, self.rng.choice([1, 1, 1, view.num_running])):
                batch.preempt(victim, self.rng.choice(MODES), self.rng.choice(PLACES))
                if self.rng.random() < 0.3:
                    self.note(victim.id, batch.admit(victim))
            self.note(batch.empty, batch.free_blocks, batch.tokens_left)
        if short is not None or batch.empty:
            self.serve(view, batch)
        else:
            batch.prefill_all(self.chunk)
            batch.schedule_waiting(self.chunk)


class Watcher(User):
    """Remembers whoever came to its door, and looks at them later."""

    def on_arrival(self, seq: Any, view: Any, batch: Any) -> None:
        self.met.append(seq)
        if batch.enqueue(seq):
            batch.reject(seq, "queue full")
        self.look(view, batch, self.met[-3:])

    def build(self, view: Any, batch: Any) -> None:
        self.look(view, batch, self.met)
        self.serve(view, batch)
        self.look(view, batch, self.met)


class Reader(User):
    """Reads what is scheduled so far, in the middle of a plan."""

    def build(self, view: Any, batch: Any) -> None:
        early = view.prefilling[: self.rng.choice([0, 0, 1, 2])]
        for seq in early:
            batch.schedule(seq, 1)
        if self.rng.random() < 0.5:
            batch.decode_all()
            if early and self.rng.random() < 0.3:
                batch.preempt(early[0], "recompute", "back")
        if self.rng.random() < 0.3:
            self.read(batch)
        self.serve(view, batch)
        if self.rng.random() < 0.3:
            batch.schedule_waiting()
        if self.rng.random() < 0.3:
            self.read(batch)
            batch.schedule_waiting()
            self.read(batch)

    def read(self, batch: Any) -> None:
        self.note([(seq.id, phase, tokens) for seq, phase, tokens in batch.entries], batch.tokens_left)


class Waiter(User):
    """Lets requests gather; mostly says when to be asked again."""

    def build(self, view: Any, batch: Any) -> Any:
        if self.rng.random() < 0.03:
            return self.rng.choice([None, "no reason"])
        if self.turns % 7 == 0 or (not view.num_running and len(view.waiting) < 3 and self.turns % 3):
            return Wait("for more", view.now + self.rng.choice([0, 1, 30]))
        return self.serve(view, batch)


class Coaster(User):
    """Keeps the promise that `coasts` is."""

    coasts = True

    def build(self, view: Any, batch: Any) -> Any:
        short = batch.schedule_running(self.chunk)
        while short is not None:
            if view.num_running == 1:
                batch.fail(short, "no room")
            else:
                batch.preempt(view.running[-1], "keep")
            short = batch.schedule_running(self.chunk)
        if not batch.preempted and batch.schedule_waiting(self.chunk) is Refusal.BLOCKS and batch.empty:
            batch.fail(view.waiting.head, "larger than the pool")
        return "as before"


class Restless(User):
    """Any verb at any time on anybody; calms down in the end."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.calm = rng.choice([5, 20, 60])

    def build(self, view: Any, batch: Any) -> Any:
        if self.turns > self.calm:
            return self.serve(view, batch)
        for _ in range(self.rng.choice([1, 2, 3, 5])):
            verb = self.rng.choice([self.bulk, self.bulk, self.single, self.single, self.read])
            self.note(verb.__name__, verb(view, batch))
        if not batch.empty:
            return None
        if self.rng.random() < 0.3:
            return Wait("a whim", view.now + self.rng.choice([1, 9]))
        return self.serve(view, batch)

    def bulk(self, view: Any, batch: Any) -> Any:
        chunk = self.rng.choice([None, None, 1, 3, 1000, 0])
        kind = self.rng.randrange(8)
        if kind < 3:
            return name_of(batch.decode_all())
        if kind == 3:
            return batch.prefill_all(chunk)
        if kind == 4:
            return batch.admit_waiting()
        if kind == 5:
            whole, spare, for_all = self.rng.random() < 0.3, self.rng.choice([0, 0, 2]), self.rng.random() < 0.3
            return batch.schedule_waiting(chunk, whole, spare, for_all)
        odd = self.rng.randrange(2)
        most_of = (lambda seq: (seq.position + odd) % 2 * 4) if self.rng.random() < 0.2 else None
        return name_of(batch.schedule_running(chunk, most_of))

    def single(self, view: Any, batch: Any) -> Any:
        pool = view.running if self.rng.random() < 0.8 else list(view.waiting)
        if not pool:
            return None
        seq = self.rng.choice(pool)
        kind = self.rng.randrange(10)
        if kind < 5:
            return seq.id, batch.schedule(seq, self.rng.choice([None, None, 1, 3, 0]))
        if kind < 8:
            back = batch.preempt(seq, self.rng.choice(MODES), self.rng.choice(PLACES))
            return seq.id, back, batch.admit(seq) if self.rng.random() < 0.3 else None
        if kind == 8 and self.rng.random() < 0.2:
            return seq.id, batch.fail(seq, "hopeless")
        if self.rng.random() < 0.2:
            return seq.id, batch.reject(seq, "not today")
        return batch.pad(self.rng.choice([0, 1, 4]))

    def read(self, view: Any, batch: Any) -> Any:
        kind = self.rng.randrange(5)
        if kind == 0:
            return [(seq.id, phase, tokens) for seq, phase, tokens in batch.entries]
        if kind == 1:
            return [seq.id for seq in view.waiting], len(view.waiting)
        lists = [[seq.id for seq in some] for some in (view.running, view.decoding, view.prefilling)]
        self.look(view, batch, [*view.running, *([view.waiting.head] if view.waiting.head else [])])
        return lists, [seq.id for seq in batch.admitted], len(batch.preempted), batch.padding_tokens


def name_of(seq: Any) -> str | None:
    return None if seq is None else seq.id


class Guarded(Restless):
    """With a door at which anything may happen too."""

    def on_arrival(self, seq: Any, view: Any, batch: Any) -> None:
        if self.rng.random() < 0.3:
            self.note("door", self.single(view, batch))
        if self.rng.random() < 0.3 and batch.admit(seq) is None:
            return
        if batch.enqueue(seq):
            batch.reject(seq, "queue full")


class Default(Restless, Policy):
    """Derived from what the built-in ones are derived from, with its door."""

    def __init__(self, rng: Random) -> None:
        Restless.__init__(self, rng)


USERS = [ShortestPromptFirst, EveryOther, Singles, Evictor, Watcher, Reader, Waiter, Coaster]


def any_user(rng: Random, seed: int) -> User:
    kind = rng.choice([*USERS, Restless, Restless, Guarded, Default])
    return kind(Random(f"user {seed}"))
