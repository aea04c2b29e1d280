"""One request to a server: sent, its stream read, what came when."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp

from batchlab.bench.target import Target, elsewhere, reason_of, text_of
from batchlab.errors import InputError, shorten
from batchlab.units import NS_IN_S

REFUSED = (400, 413, 422, 429, 503)
"""Statuses of a server that will not serve a request: rejected. Any other error is a failure."""
BUSY = (429, 503)
"""Those after which another attempt may succeed."""
MISTAKEN = (401, 403, 404, 405, 501)
"""Statuses that every request would get: the run ends. So it does where the server sends clients elsewhere."""
MOST_COUNTED = 1 << 24
"""Tokens that a server may say one answer or prompt has: more than any context, and a number that can be counted to."""
LONGEST_LINE = 1 << 28
"""Bytes of one line of a stream: the first may repeat the prompt, token by token."""
MOST_CHUNKS = 1 << 20
"""Events with output that one answer may have."""
CANCELLED = "by its client"


@dataclass
class Outcome:
    """What became of one request. Times in ns from the start of the load.

    intended: when it was to go out. ready: when it could, after a cap on those in flight. first_sent, sent: when it
    did, the first and the last time. chunks: when each event with output came, and how many tokens it held. counted:
    how these are known: `token_ids`, `usage` or `chunks` (one each, a guess). output, prompt: tokens as the server
    counts them, None if it does not say. retries: attempts after the first; waits: seconds before each of them.
    """

    position: int
    intended: int
    ready: int
    sent: int = 0
    end: int = 0
    result: str = "failed"
    reason: str = ""
    status: int | None = None
    chunks: list[tuple[int, int]] = field(default_factory=list)
    counted: str = "token_ids"
    output: int | None = None
    prompt: int | None = None
    retries: int = 0
    retry_after: float | None = None
    waits: list[float] = field(default_factory=list)
    first_sent: int = 0

    def begin(self, now: int) -> None:
        """An attempt goes out: nothing is left of the one before."""
        self.sent = now
        self.result, self.reason, self.status, self.chunks = "failed", "", None, []
        self.counted, self.output, self.prompt, self.retry_after = "token_ids", None, None, None

    @property
    def tokens(self) -> int:
        """Output tokens: as the server counts them, else as they came."""
        return sum(tokens for _, tokens in self.chunks) if self.output is None else self.output

    @property
    def busy(self) -> bool:
        """Whether it was refused since too much is going on."""
        return self.result == "rejected" and not self.chunks and self.status in BUSY


class Clock:
    """ns since it was made, on the clock of the event loop that it is made in."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()

    def now(self) -> int:
        """The time."""
        return round((self._loop.time() - self._origin) * NS_IN_S)

    async def until(self, at: int) -> None:
        """Wait for a time."""
        while (left := at - self.now()) > 0:
            await asyncio.sleep(left / NS_IN_S)


class Client:
    """Sends requests to a target. timeout: seconds that a request may take. token_ids: whether to ask for them."""

    def __init__(
        self, http: aiohttp.ClientSession, target: Target, clock: Clock, timeout: float, token_ids: bool = True
    ) -> None:
        self._http = http
        self._target = target
        self._clock = clock
        self.timeout = timeout
        self._token_ids = token_ids

    def body(self, prompt: str | list[int], max_tokens: int, more: Mapping[str, Any]) -> bytes:
        """What is sent for a prompt."""
        target = self._target
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt}]} if target.chat else {"prompt": prompt}
        )
        limit = "max_completion_tokens" if target.chat else "max_tokens"
        document = {"model": target.model, **asked, limit: max_tokens, "stream": True}
        document["stream_options"] = {"include_usage": True}
        if self._token_ids:
            document["return_token_ids"] = True
        return json.dumps({**document, **more, **target.extra}).encode()

    async def send(self, outcome: Outcome, name: str, body: bytes, give_up: int | None) -> None:
        """Send it and fill in its outcome. give_up: when the client hangs up. Raises InputError for a wrong target."""
        outcome.begin(self._clock.now())
        last = outcome.sent + round(self.timeout * NS_IN_S)
        hangs_up = give_up is not None and give_up < last
        until = give_up if give_up is not None and hangs_up else last
        try:
            async with asyncio.timeout((until - outcome.sent) / NS_IN_S):
                await self._exchange(outcome, name, body)
        except aiohttp.ServerTimeoutError as error:  # a TimeoutError too, but of the connection
            outcome.reason = f"connection: {reason_of(error)}"
        except TimeoutError:
            outcome.result = "cancelled" if hangs_up else "failed"
            outcome.reason = CANCELLED if hangs_up else f"took longer than {self.timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            outcome.reason = f"connection: {reason_of(error)}"
        outcome.end = self._clock.now()

    async def _exchange(self, outcome: Outcome, name: str, body: bytes) -> None:
        headers = {"Content-Type": "application/json", "X-Request-Id": _header(name)}
        post = self._http.post(self._target.url, data=body, headers=headers, allow_redirects=False)
        async with post as response:
            outcome.status = response.status
            if response.status != 200:
                elsewhere(self._target.url, response)
                self._refused(outcome, response.headers.get("Retry-After"), await text_of(response))
                return
            await Stream(outcome, self._clock.now, response.content_type).read(response.content.iter_any())

    def _refused(self, outcome: Outcome, retry_after: str | None, text: str) -> None:
        status = outcome.status or 0
        message = _message(text)
        if status in MISTAKEN:
            raise InputError(self._target.url, f"status {status}", None, message)
        outcome.result = "rejected" if status in REFUSED else "failed"
        outcome.reason = f"{status}: {message}"
        try:
            seconds = float(retry_after or "")
        except ValueError:  # none, or a date, which no engine sends
            return
        if math.isfinite(seconds):
            outcome.retry_after = max(0.0, seconds)


class EndlessError(Exception):
    """A server that does not stop."""


class Stream:
    """Reads the events of an answer into its outcome. kind: what the server says it is."""

    def __init__(self, outcome: Outcome, now: Callable[[], int], kind: str = "text/event-stream") -> None:
        self._outcome = outcome
        self._now = now
        self._kind = kind
        self._events = 0
        self._finished = False
        self._with_ids = 0
        self._usage_before: int | None = 0

    async def read(self, parts: AsyncIterator[bytes]) -> None:
        """All of it. Events that come together have one time."""
        rest = bytearray()  # grows in place: a long line in small parts is not copied with each
        async for part in parts:
            now = self._now()
            rest += part
            if b"\n" in part:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"data:") and not self._event(bytes(line[5:].strip()), now):
                        return
            if len(rest) > LONGEST_LINE:
                self._outcome.reason = f"a line of over {LONGEST_LINE >> 20} MiB"
                return
        self._close()
        if not self._events and (rest or self._kind == "text/html"):
            self._outcome.reason = f"no stream of events, but {self._kind}"

    def _event(self, data: bytes, now: int) -> bool:
        """One event. Whether more may come."""
        self._events += 1
        if data == b"[DONE]":
            self._close("no finish_reason before [DONE]")
            return False
        try:
            return self._document(json.loads(data), now)
        except EndlessError:
            self._outcome.reason = f"an answer of over {MOST_CHUNKS:,} events"
            return False
        except (ValueError, TypeError, AttributeError, RecursionError):  # no JSON, or something else than what it is
            self._outcome.reason = f"not an event of OpenAI's API: {shorten(data)}"
            return False

    def _document(self, document: Any, now: int) -> bool:
        """What an event says. Raises ValueError, TypeError or AttributeError where it is not in OpenAI's form."""
        outcome = self._outcome
        error = document.get("error")
        if error is not None:
            code = error.get("code") if isinstance(error, dict) else None
            outcome.status = code if isinstance(code, int) and 100 <= code < 600 else outcome.status
            outcome.result = "failed" if outcome.chunks else "rejected"
            outcome.reason = f"in the stream: {_message(json.dumps(document))}"
            return False
        usage = document.get("usage") or {}
        output, prompt = _count(usage.get("completion_tokens")), _count(usage.get("prompt_tokens"))
        for choice in document.get("choices") or []:
            self._choice(choice, output, now)
        if usage:
            outcome.output, outcome.prompt = output, prompt
        return True

    def _choice(self, choice: dict[str, Any], usage: int | None, now: int) -> None:
        ids = choice.get("token_ids")
        delta = choice.get("delta") or {}
        words = choice.get("text") or delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content")
        if ids is not None:
            tokens = len(ids)
            self._with_ids += bool(tokens)
        elif usage is not None and self._usage_before is not None:
            tokens = usage - self._usage_before
        else:
            tokens = bool(words)
        self._usage_before = usage
        if tokens > 0:
            self._outcome.chunks.append((now, int(tokens)))
            if len(self._outcome.chunks) > MOST_CHUNKS:
                raise EndlessError
        self._finished |= choice.get("finish_reason") is not None

    def _close(self, unfinished: str = "the stream broke off") -> None:
        """The stream is over: it is complete if it said so. unfinished: what it is where it did not."""
        outcome = self._outcome
        if not self._finished or not outcome.chunks:
            outcome.reason = unfinished if not self._finished else "an answer without a token"
            return
        outcome.result = "completed"
        outcome.output = outcome.output or None  # 0, of an answer: it does not count
        if self._with_ids < len(outcome.chunks):
            streamed = sum(tokens for _, tokens in outcome.chunks)
            outcome.counted = "usage" if outcome.output is not None else "chunks"
            if outcome.output is not None and outcome.output != streamed:
                outcome.counted = "total"


def _count(given: Any) -> int | None:
    """A number of tokens. Raises ValueError for what is none."""
    if given is not None and (type(given) is not int or not 0 <= given <= MOST_COUNTED):
        raise ValueError
    return given


def _header(name: str) -> str:
    """An id as the value of a header: percent-encoded where it has characters that none may have."""
    return name if name.isascii() and name.isprintable() else quote(name, errors="replace")


def _message(text: str) -> str:
    """What an error says."""
    try:
        document = json.loads(text)
        error = document.get("error", document)
        message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        message = text
    return shorten(str(message or "no reason given"))[1:-1]
