"""The two worked examples, as `batchlab learn` introduces them."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Lesson:
    """A scenario to walk through. what_if: changes worth trying, each a setting and the question that it "
    "answers."""

    path: Path
    introduction: str
    what_if: tuple[tuple[str, str], ...]


LESSONS = (
    Lesson(
        HERE / "first.toml",
        "A small engine with a bounded queue. Inside an iteration: newcomers one by one (a free seat, or the "
        "seat of a less urgent request with the most work left, or the queue, or no place at all); free seats "
        "from the front of the queue; a token for everybody in the decode phase; chunks of prompts while the "
        "budget lasts. The iteration that ends a prefill brings the first output token. Who has all tokens "
        "leaves; the seat is free in the next iteration.",
        (
            ("engine.prefill_chunk=6", "larger chunks: who is preempted now?"),
            ("engine.priority_preemption=false", "no preemption: what becomes of C, E and F?"),
            ("engine.arrivals_first=false", "those who wait go first: who gains, who loses?"),
            ("engine.max_num_batched_tokens=60", "ten times the budget: what changes?"),
        ),
    ),
    Lesson(
        HERE / "second.toml",
        "The same four requests batched in three ways. static: a batch is formed when nothing is active, and "
        "runs until its last member is done. continuous: seats are filled in every iteration; decodes first, "
        "then whole prompts, those that fit. chunked: the same, with at most 4 tokens of a prompt in an "
        "iteration. An iteration lasts 1 for each prefill token and 2 for each decode: cost units, no "
        "milliseconds. Who comes while one runs is seen when the next begins.",
        (
            ("engine.prefill_chunk=2", "smaller chunks: what does A gain, and who pays?"),
            ("engine.max_num_seqs=1", "one seat: what is left of the difference between the three?"),
            ("workload.requests.D.prompt=6", "D's prompt of 6 fits: who waits for it?"),
        ),
    ),
)
