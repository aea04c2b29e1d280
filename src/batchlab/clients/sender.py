"""Who sends the requests of a run."""

from collections.abc import Sequence

from batchlab.clients.closed import Closed
from batchlab.clients.listed import Listed
from batchlab.clients.request import Request
from batchlab.clients.retry import Backoff, Retrying


def client_of(
    requests: Sequence[Request], clients: int | None, think_time: int, retry: Backoff | None
) -> Listed | Closed | Retrying:
    """One that sends at the requests' own times, or a closed loop of so many clients; perhaps one that retries."""
    client = Listed(requests) if clients is None else Closed(requests, clients, think_time)
    return client if retry is None else Retrying(client, retry)
