"""HTTP around the live engine: routes, streams, errors in OpenAI's form. aiohttp does the HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from batchlab.errors import InputError
from batchlab.serve.engine import Engine, Live
from batchlab.serve.protocol import Answer, ApiError, Body, Chat, Completion, event, identity, parse
from batchlab.units import NS_IN_MS

MOST_BYTES = 32 << 20
"""Of a request's body; what is longer gets 413."""
PATIENCE = 30.0
"""Seconds within which a request has to have come: its head after the connection was made, then its body."""
LONGEST_ID = 200
GONE = 499
"""Of an answer that nobody reads."""
VLLMS_OWN = "max_num_queued_"
"""So begin the reasons of vLLM's own bounds, for which it says 503 and not when to come again."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Settings:
    """model: the name that it serves. tokens_per_chunk: how many output tokens an event of a stream holds.

    retry_after: seconds that a client is told to wait when it was refused.
    """

    model: str
    tokens_per_chunk: int = 1
    retry_after: int = 1


class Connection(web.RequestHandler):
    """A connection of which a request is expected soon, and whose errors have OpenAI's form."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Whoever says nothing for long is not waited for."""
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The other side is gone."""
        self.spoke()
        super().connection_lost(exc)

    def spoke(self) -> None:
        """A request has come."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, and what went wrong here."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        lines = (message or "not understood").strip().splitlines()
        response = _error(ApiError(status, f"malformed HTTP request: {lines[0]}"))
        response.force_close()
        return response


class Front(web.Server):
    """Makes the connections; a client that hangs up cancels what is done for it."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(handler, request_factory=_request, handler_cancellation=True)

    def __call__(self) -> Connection:
        """One connection."""
        return Connection(self, loop=asyncio.get_running_loop(), auto_decompress=False)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MOST_BYTES)


class MockServer:
    """Answers requests with tokens of the engine."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self._created = int(time.time())
        self._names: set[str] = set()  # that are taken: a trace names everybody once, else those that are there do
        self._count = 0
        self._served = 0
        self._routes: dict[str, tuple[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]]] = {
            "/v1/completions": ("POST", self._completions),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request."""
        if isinstance(request.protocol, Connection):
            request.protocol.spoke()
        try:
            if request.path not in self._routes:
                raise ApiError(404, f"no such path: {request.path}; there are {', '.join(self._routes)}")
            method, answer = self._routes[request.path]
            if request.method != method:
                raise ApiError(405, f"{request.path} takes {method}, not {request.method}")
            return await answer(request)
        except ApiError as error:
            return _error(error)
        except ConnectionError:  # it hung up as this wrote to it, which is its right; aiohttp finds out by itself
            return web.Response(status=GONE)

    async def _completions(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._serve(request, await self._body(request, Completion), chat=False)

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._serve(request, await self._body(request, Chat), chat=True)

    async def _body(self, request: web.BaseRequest, kind: type[Body]) -> Body:
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":  # 400 KB may hold 400 MB; vLLM does not unpack either
            raise ApiError(415, f"Content-Encoding {encoding!r}: a body must not be compressed")
        if (request.content_length or 0) > MOST_BYTES:  # said before any of it has come
            raise _too_long()
        try:
            async with asyncio.timeout(PATIENCE):
                if request.headers.get("Expect", "").lower() == "100-continue":  # curl waits a second for it
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                data = await request.read()
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {PATIENCE:g} s") from None
        except web.HTTPRequestEntityTooLarge:
            raise _too_long() from None
        except web.RequestPayloadError as error:
            raise ApiError(400, f"the body cannot be read: {' '.join(str(error).split())}") from None
        body = parse(kind, data)
        if body.model is not None and body.model != self.settings.model:
            raise ApiError(404, f"The model `{body.model}` does not exist; there is `{self.settings.model}`.", "model")
        return body

    async def _serve(self, request: web.BaseRequest, body: Body, chat: bool) -> web.StreamResponse:
        if self.engine.stopping:
            raise ApiError(503, "the server shuts down")
        tokens = body.prompt_tokens()
        longest = self.engine.run.limits.max_model_len
        if longest is not None and len(tokens) + body.limit > longest:
            message = f"at most {longest} tokens fit: {len(tokens)} of the prompt and {body.limit} to come are too many"
            raise ApiError(400, message, "max_tokens")
        if (body.min_tokens or 0) > body.limit:
            raise ApiError(400, f"min_tokens: {body.min_tokens} are more than the {body.limit} to come", "min_tokens")
        name = self._name(request.headers.get("X-Request-Id"))
        live = self._submit(name, body, tokens)
        answer = Answer(
            chat, f"{'chatcmpl' if chat else 'cmpl'}-{name}", self.settings.model, int(time.time()), body, tokens
        )
        try:
            await live.decided()
            if live.result is not None and live.result != "completed":
                raise self._failure(live)
            if body.stream:
                return await self._stream(request, live, answer)
            await live.beyond(live.total)
            if live.result not in (None, "completed"):
                raise self._failure(live)
            return web.json_response(answer.whole(live.tokens))
        finally:  # also if the client has hung up
            self.engine.cancel(live)
            if not self.engine.observed:
                self._names.discard(name)

    def _submit(self, name: str, body: Body, tokens: list[int] | list[bytes]) -> Live:
        limits = self.engine.run.limits
        self._served += 1
        known = identity(tokens, limits.block_size, self._served) if limits.enable_prefix_caching else None
        deadline = None if body.deadline_ms is None else body.deadline_ms * NS_IN_MS
        priority = 1 if body.priority is None else body.priority
        try:
            return self.engine.submit(name, len(tokens), body.limit, priority=priority, deadline=deadline, tokens=known)
        except InputError as error:  # the policy cannot run it
            raise ApiError(400, str(error)) from None

    async def _stream(self, request: web.BaseRequest, live: Live, answer: Answer) -> web.StreamResponse:
        """Events as tokens come; whatever ends it early comes as an event, since the status is out by then."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        sent, total = 0, live.total
        while sent < total:
            wanted = min(sent + self.settings.tokens_per_chunk, total)
            await live.beyond(wanted)
            if live.tokens < wanted:
                await response.write(event(self._failure(live).document()) + DONE)
                break
            await response.write(answer.chunk(sent, wanted, wanted == total))
            sent = wanted
        else:
            await response.write((answer.usage_chunk(sent) if answer.usage_last else b"") + DONE)
        await response.write_eof()
        return response

    def _failure(self, live: Live) -> ApiError:
        """What a client is told of a request that was not completed."""
        if live.result == "rejected":
            if "prompt" in live.reason or "max_tokens" in live.reason:  # it can never be served
                return ApiError(400, live.reason)
            if live.reason.startswith(VLLMS_OWN):
                return ApiError(503, live.reason)
            return ApiError(429, live.reason, retry_after=self.settings.retry_after)
        status = {"expired": 504, "cancelled": 503}.get(live.result or "", 500)
        return ApiError(status, live.reason)

    def _name(self, given: str | None) -> str:
        """A new id: the client's own, if it has one that is not taken."""
        own = given if given and given.isprintable() and len(given) <= LONGEST_ID else ""
        name = own
        while not name or name in self._names:
            self._count += 1
            name = f"{own or 'r'}-{self._count}"
        self._names.add(name)
        return name

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        longest = self.engine.run.limits.max_model_len
        model = {"id": self.settings.model, "object": "model", "created": self._created, "owned_by": "batchlab"}
        return web.json_response({"object": "list", "data": [{**model, "max_model_len": longest}]})

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=200)

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        engine = self.engine
        kv = engine.core.kv
        used = 0.0 if kv is None else 1 - kv.free / kv.num_blocks
        figures = [
            ("vllm:num_requests_running", "gauge", len(engine.core.running)),
            ("vllm:num_requests_waiting", "gauge", engine.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", used),
            ("vllm:num_preemptions_total", "counter", engine.preemptions),
            ("vllm:prompt_tokens_total", "counter", engine.prompt_tokens),
            ("vllm:generation_tokens_total", "counter", engine.output_tokens),
            ("batchlab:iterations_total", "counter", engine.iterations),
            ("batchlab:clock_lag_seconds", "gauge", engine.lag),
        ]
        label = self.settings.model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines = [f'# TYPE {name} {kind}\n{name}{{model_name="{label}"}} {value}' for name, kind, value in figures]
        lines.append("# TYPE batchlab:requests_total counter")
        for result, count in sorted(engine.ended.items()):
            lines.append(f'batchlab:requests_total{{model_name="{label}",result="{result}"}} {count}')
        return web.Response(text="\n".join(lines) + "\n", headers={"Content-Type": "text/plain; version=0.0.4"})


def _too_long() -> ApiError:
    return ApiError(413, f"the body is longer than {MOST_BYTES:,} bytes")


def _error(error: ApiError) -> web.Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return web.json_response(error.document(), status=error.status, headers=headers)


@contextlib.asynccontextmanager
async def serving(
    engine: Engine, settings: Settings, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """A server while the block runs; gives the port, and the engine's task, which ends early only if it failed.

    Afterwards whatever is under way is cancelled, and the engine's error is raised if it has one. Raises OSError.
    """
    front = Front(MockServer(engine, settings).handle)
    listener = await asyncio.get_running_loop().create_server(front, host, port, backlog=1024)
    loop = asyncio.create_task(engine.serve())
    try:
        yield listener.sockets[0].getsockname()[1], loop
    finally:
        listener.close()
        engine.stop()
        try:
            await loop
        finally:
            await front.shutdown(1.0)
