"""Who sends the requests of a run."""

from collections.abc import Sequence

from batchlab.clients.capped import Capped
from batchlab.clients.closed import Closed
from batchlab.clients.columns import Columns
from batchlab.clients.listed import Listed
from batchlab.clients.request import Request
from batchlab.clients.retry import Backoff, Retrying
from batchlab.clients.turns import Turns


def client_of(
    requests: Sequence[Request],
    clients: int | None,
    think_time: int,
    retry: Backoff | None,
    max_concurrency: int | None = None,
) -> Listed | Capped | Closed | Turns | Retrying:
    """One that sends at the requests' own times, perhaps under a cap, sessions that wait, or a closed loop.

    Perhaps it tries again after rejections.
    """
    client: Listed | Capped | Closed | Turns
    if clients is not None:
        client = Closed(requests, clients, think_time)
    elif max_concurrency is not None:
        client = Capped(requests, max_concurrency)
    else:
        client = Turns(requests) if isinstance(requests, Columns) and requests.waits else Listed(requests)
    return client if retry is None else Retrying(client, retry)
