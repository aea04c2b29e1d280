"""Many requests, compactly: one array for each field instead of one object for each request."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from batchlab.clients.request import Request, TokenIdentity
from batchlab.clients.sessions import Sessions
from batchlab.core.load import Load

Integers = npt.NDArray[np.int64]
CHUNK = 65_536
"""Rows turned into Python objects at a time."""


ORACLE = "max_tokens = true output length (an oracle: no engine has it)"


@dataclass(frozen=True)
class Origin:
    """Where a workload came from and what was done to it, for reports.

    file, sha256: None where the requests are generated. format: of the file, or "generated". steps: what was done to
    them, in order, one sentence each. rule: where max_tokens came from. goodput: by class (None where there are none),
    the targets for its requests as the scenario writes them.
    """

    file: str | None
    sha256: str | None
    format: str
    steps: tuple[str, ...] = ()
    rule: str = ORACLE
    goodput: Mapping[str | None, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """All of it, for a reader."""
        first = "generated workload" if self.file is None else f"workload {self.file} ({self.format})"
        return [", ".join((first, *self.steps)), self.rule]


class Columns(Sequence[Request]):
    """Requests in arrays; a Request object is made when one is asked for.

    ids: None names them "0", "1", "2", ... by `numbers` (their rows in the file), or by position without those.
    max_tokens: None for the true output lengths. priority: None for 1 everywhere. hashes: `(offsets, values)`; the
    block hashes of request i are values[offsets[i]:offsets[i + 1]]. deadline: 0 for none. groups: names, and which of
    them each request has. sessions: what the prompts begin with, where that is known. identities: which tokens each
    consists of, where somebody has told it.
    """

    def __init__(
        self,
        arrival: Integers,
        prompt: Integers,
        output: Integers,
        max_tokens: Integers | None = None,
        priority: Integers | None = None,
        ids: list[str] | None = None,
        numbers: Integers | None = None,
        hashes: tuple[Integers, Integers] | None = None,
        origin: Origin | None = None,
        deadline: Integers | None = None,
        groups: tuple[list[str], Integers] | None = None,
        sessions: Sessions | None = None,
        identities: list[TokenIdentity | None] | None = None,
    ) -> None:
        self.arrival = arrival
        self.prompt = prompt
        self.output = output
        self.max_tokens = output if max_tokens is None else max_tokens
        self.priority = priority
        self.ids = ids
        self.numbers = numbers
        self.hashes = hashes
        self.origin = origin
        self.deadline = deadline
        self.groups = groups
        self.sessions = sessions
        self.identities = identities
        self.dropped = 0
        """Rows of the file that had a length of 0 and were left out."""

    def __len__(self) -> int:
        return len(self.arrival)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> list[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | list[Request]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        follows = None if self.sessions is None else self.sessions.follows(position)
        return Request(
            self._id(position),
            int(self.arrival[position]),
            int(self.prompt[position]),
            int(self.output[position]),
            int(self.max_tokens[position]),
            1 if self.priority is None else int(self.priority[position]),
            None if self.deadline is None else int(self.deadline[position]) or None,
            group=None if self.groups is None else self.groups[0][int(self.groups[1][position])],
            after=None if follows is None else self._id(follows[0]),
            think_time=None if follows is None else follows[1],
        )

    def __iter__(self) -> Iterator[Request]:
        for start in range(0, len(self), CHUNK):
            part = slice(start, min(start + CHUNK, len(self)))
            numbers = range(part.start, part.stop) if self.numbers is None else self.numbers[part].tolist()
            if self.deadline is not None or self.groups is not None or self.waits:
                yield from self[part]
                continue
            yield from map(
                Request,
                map(str, numbers) if self.ids is None else self.ids[part],
                self.arrival[part].tolist(),
                self.prompt[part].tolist(),
                self.output[part].tolist(),
                self.max_tokens[part].tolist(),
                [1] * (part.stop - start) if self.priority is None else self.priority[part].tolist(),
            )

    @property
    def waits(self) -> bool:
        """Whether any request comes only when another one has ended, so that arrivals are not known before the run."""
        return self.sessions is not None and self.sessions.think is not None

    @property
    def has_turns(self) -> bool:
        """Whether any request is a later turn; who only shares the beginning of a prompt has a session too, of one."""
        return self.sessions is not None and bool((self.sessions.previous >= 0).any())

    def source(self) -> dict[str, Any]:
        """Where the requests came from and what was done to them, as a trace's header says it."""
        if self.origin is None:
            return {}
        file = {} if self.origin.file is None else {"name": Path(self.origin.file).name, "sha256": self.origin.sha256}
        return {**file, "steps": list(self.origin.steps)} if self.origin.steps else file

    def field(self, name: str) -> list[int]:
        """One numeric field of all requests, by a Request's name for it."""
        column: Integers | None = getattr(self, name)
        values: list[int] = [1] * len(self) if column is None else column.tolist()
        return values

    def block_hashes(self, index: int) -> list[int]:
        """The block hashes of a request's prompt, none where the source has none."""
        if self.hashes is None:
            return []
        offsets, values = self.hashes
        position = range(len(self))[index]
        found: list[int] = values[offsets[position] : offsets[position + 1]].tolist()
        return found

    def tokens(self, index: int) -> TokenIdentity | None:
        """Which tokens a request consists of, None where the source does not say."""
        if self.identities is not None:
            return self.identities[index]
        return None if self.sessions is None else self.sessions.tokens(range(len(self))[index], self.output)

    def take(self, chosen: Integers) -> "Columns":
        """The requests at the given positions, in the given order; each keeps its id."""
        return Columns(
            self.arrival[chosen],
            self.prompt[chosen],
            self.output[chosen],
            self.max_tokens[chosen],
            None if self.priority is None else self.priority[chosen],
            None if self.ids is None else [self.ids[position] for position in chosen.tolist()],
            chosen if self.numbers is None else self.numbers[chosen],
            None if self.hashes is None else _take_rows(*self.hashes, chosen),
            self.origin,
            None if self.deadline is None else self.deadline[chosen],
            None if self.groups is None else (self.groups[0], self.groups[1][chosen]),
            None if self.sessions is None else self.sessions.take(chosen),
            None if self.identities is None else [self.identities[position] for position in chosen.tolist()],
        )

    def _id(self, position: int) -> str:
        if self.ids is not None:
            return self.ids[position]
        return str(position if self.numbers is None else int(self.numbers[position]))


def _take_rows(offsets: Integers, values: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    lengths = np.diff(offsets)[chosen]
    moved = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(moved[-1]) - np.repeat(moved[:-1], lengths)
    return moved, values[np.repeat(offsets[:-1][chosen], lengths) + within]


def load_of(requests: Sequence[Request]) -> Load | None:
    """The columns that the core reads; None if a request has more to it than lengths, arrival and priority."""
    if isinstance(requests, Columns):
        if requests.deadline is not None or requests.waits:
            return None
        names = [requests.arrival, requests.prompt, requests.max_tokens]
        arrival, prompt, most = (np.ascontiguousarray(column, np.int64) for column in names)
        priority = None if requests.priority is None else np.ascontiguousarray(requests.priority, np.int64)
        name = requests._id
    else:
        rows = [(r.arrival, r.prompt, r.max_tokens, r.priority) for r in requests if _is_plain(r)]
        if len(rows) < len(requests) or not rows:
            return None
        arrival, prompt, most, priority = np.array(rows, np.int64).T.copy()

        def name(position: int) -> str:
            return requests[position].id

    in_order = bool((arrival[1:] >= arrival[:-1]).all())
    order = None if in_order else np.argsort(arrival, kind="stable").astype(np.int64)
    return Load(arrival.data, prompt.data, most.data, _view(priority), _view(order), name)


def outputs_of(requests: Sequence[Request], longest: int | None) -> "array[int]":
    """True output lengths by position, as far as max_model_len (`longest`) lets them come. A copy."""
    outputs = _column(requests, "output")
    if longest is not None:
        np.minimum(outputs, longest - np.asarray(_column(requests, "prompt")), out=np.asarray(outputs))
    return outputs


def _column(requests: Sequence[Request], name: str) -> "array[int]":
    if isinstance(requests, Columns):
        found = array("q")
        found.frombytes(np.ascontiguousarray(getattr(requests, name), np.int64).data.cast("B"))
        return found
    return array("q", [getattr(request, name) for request in requests])


def _view(column: Integers | None) -> Any:
    return None if column is None else column.data


def _is_plain(r: Request) -> bool:
    return r.deadline is None and r.cancel_at is None and r.sent is None and r.tokens is None
