"""What a step tells a cost model: the sums, and with `details` the single requests they are sums of."""

import pytest

from batchlab.clients.request import Request
from batchlab.core.limits import Limits
from batchlab.core.work import Work
from batchlab.costs.linear import Linear
from batchlab.policies.vllm import Vllm
from batchlab.simulation import Run, simulate


class Seen(Linear):
    """A linear cost that keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__(unit="cost unit", per_iteration=1, prefill_token=1)
        self.details = ("chunks", "contexts")
        self.works: list[tuple[int, ...]] = []
        self.singles: list[tuple[list[tuple[int, int]], list[int]]] = []

    def duration(self, work: Work) -> int:
        sums = (work.prefill_tokens, work.decode_tokens, work.context_tokens, work.prefill_context, work.samples)
        self.works.append(sums)
        self.singles.append((list(work.chunks), list(work.contexts)))
        return super().duration(work)


@pytest.mark.parametrize("details", [("chunks", "contexts"), ()])
def test_sums_are_those_of_the_single_requests(details: tuple[str, ...]) -> None:
    cost = Seen()
    cost.details = details
    requests = [Request(str(i), 7 * i, 5 + 9 * i % 23, 1 + i % 6, 9) for i in range(12)]
    simulate(Run(Vllm(), Limits(max_num_seqs=4, max_num_batched_tokens=11), cost, requests))
    assert sum(sums[4] for sums in cost.works) == sum(r.output for r in requests), "a sample for every output token"
    assert len(set(cost.works)) > 10
    for (prefill, decode, context, prefill_context, _), (chunks, contexts) in zip(
        cost.works, cost.singles, strict=True
    ):
        if not details:
            assert (chunks, contexts) == ([], [])
            continue
        assert prefill == sum(tokens for tokens, _ in chunks)
        assert decode == len(contexts)
        assert prefill_context == sum(tokens + before for tokens, before in chunks)
        assert context == prefill_context + sum(contexts)


def test_the_first_steps_by_hand() -> None:
    cost = Seen()
    limits = Limits(max_num_seqs=2, max_num_batched_tokens=4)
    simulate(Run(Vllm(), limits, cost, [Request("a", 0, 6, 2, 9), Request("b", 0, 2, 1, 9)]))
    assert cost.singles == [([(4, 0)], []), ([(2, 4), (2, 0)], []), ([], [7])]
    assert [sums[4] for sums in cost.works] == [0, 2, 1]
