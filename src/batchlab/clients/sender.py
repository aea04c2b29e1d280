"""Who sends the requests of a run."""

from collections.abc import Sequence

from batchlab.clients.closed import Closed
from batchlab.clients.columns import Columns
from batchlab.clients.listed import Listed
from batchlab.clients.request import Request
from batchlab.clients.retry import Backoff, Retrying
from batchlab.clients.turns import Turns


def client_of(
    requests: Sequence[Request], clients: int | None, think_time: int, retry: Backoff | None
) -> Listed | Closed | Turns | Retrying:
    """One that sends at the requests' own times, sessions that wait, or a closed loop; perhaps one that retries."""
    client: Listed | Closed | Turns
    if clients is not None:
        client = Closed(requests, clients, think_time)
    else:
        client = Turns(requests) if isinstance(requests, Columns) and requests.waits else Listed(requests)
    return client if retry is None else Retrying(client, retry)
