"""What follows about each request from the lines of a trace, by plain counting."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from laws_runs import Outcome

ENDED = ("completed", "rejected", "cancelled", "expired", "failed")


@dataclass
class Life:
    """One request, as far as the lines were read."""

    request: dict[str, Any]
    state: str = "pending"
    computed: int = 0
    target: int = 0  # below it, computing is prefill
    emitted: int = 0
    scheduled: int = 0
    cached: int = 0
    dropped: int = 0  # computed tokens that recompute preemptions took
    recomputed: int = 0  # the same, less what was found in the cache
    lost: int = 0  # what the last one took, until the next seat
    attempts: int = 0

    def arrive(self) -> None:
        """At the door, for the first time or again; what an earlier attempt had done is gone."""
        self.state = "waiting"
        self.attempts += 1
        self.computed = self.emitted = self.lost = 0
        self.target = self.request["prompt"]

    def seat(self, cached: int) -> None:
        """It takes a seat with nothing computed."""
        self.computed = cached
        self.cached += cached
        self.recomputed -= min(cached, self.lost)
        self.lost = 0

    def preempt(self, entry: dict[str, Any]) -> None:
        if entry["mode"] == "recompute":
            self.dropped += self.computed
            self.recomputed += self.computed
            self.lost = self.computed
            self.computed = 0

    def step(self, tokens: int) -> bool:
        """Take scheduled tokens; whether an output token follows."""
        self.scheduled += tokens
        self.computed += tokens
        return self.computed >= self.target


class Story:
    """All requests of a run, line by line. Checks nothing; what it derives is for the laws to compare."""

    def __init__(self, run: Outcome) -> None:
        self.run = run
        self.lives = {name: Life(request, target=request["prompt"]) for name, request in run.requests.items()}
        self.sampled: dict[int, list[tuple[str, str]]] = {}  # by iteration: who gets a token from it, in which phase
        self.delivered: list[tuple[str, str]] = []  # the tokens that come out at this line's end
        self.lost_tokens: list[str] = []  # those for whom nobody waits
        self.first: list[str] = []

    def lines(self) -> Iterator[dict[str, Any]]:
        """Each line, once all that it says up to its end has happened."""
        for line in self.run.iterations:
            self._move(line)
            self._compute(line)
            self._deliver(line)
            yield line

    def _move(self, line: dict[str, Any]) -> None:
        lives = self.lives
        for name in line["arrived"]:
            lives[name].arrive()
        moves = Counter(line["admitted"])
        moves.subtract(entry["id"] for entry in line["preempted"])
        for name in moves:
            held = (lives[name].state == "active") + moves[name]
            assert held in (0, 1), f"{name} would hold {held} seats"
            lives[name].state = "active" if held else "waiting"
        for entry in line["rejected"]:
            lives[entry["id"]].state = "rejected" if entry.get("retry_at") is None else "retrying"
        for entry in line.get("dropped", ()):
            lives[entry["id"]].state = entry["result"]

    def _compute(self, line: dict[str, Any]) -> None:
        """Preemptions come before the seats that count: who is scheduled was not preempted after that."""
        lives = self.lives
        for entry in line["preempted"]:
            lives[entry["id"]].preempt(entry)
        for name in line["admitted"]:
            if lives[name].computed == 0:
                lives[name].target = lives[name].request["prompt"] + lives[name].emitted
        for name, tokens in line.get("cached", ()):
            lives[name].seat(tokens)
        ready = [(name, phase) for name, phase, tokens in line["scheduled"] if lives[name].step(tokens)]
        self.sampled[line["iteration"]] = ready

    def _deliver(self, line: dict[str, Any]) -> None:
        from_line = self.run.delivered(line)
        self.delivered, self.lost_tokens, self.first = [], [], []
        for name, phase in self.sampled[from_line["iteration"]] if from_line else ():
            life = self.lives[name]
            if life.state in ENDED:
                self.lost_tokens.append(name)
                continue
            life.emitted += 1
            self.delivered.append((name, phase))
            if life.emitted == 1:
                self.first.append(name)
        for name in line["completed"]:
            self.lives[name].state = "completed"
