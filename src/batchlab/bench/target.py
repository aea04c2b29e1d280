"""Where the load goes: a server that speaks OpenAI's API, looked at before anything is sent."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from batchlab.errors import InputError, nearest, shorten

PATHS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
CONNECT = 10.0
"""Seconds within which a server has to take a connection, and to answer when it is asked for its models."""
LEAST = 1.0
"""It has so many seconds even where a request may take less."""
VERSION_WAIT = 2.0
"""Seconds to wait for an answer that is not needed."""
KEEP_ALIVE = 3.0
"""Seconds that an idle connection is kept: less than servers do, so that none is closed under a request."""
MOST_BYTES = 1 << 22
"""Of an answer that is not a stream, so many are read: the rest of a page that never ends says nothing more."""


@dataclass(frozen=True)
class Target:
    """base: the server without /v1. path: below it. backend: a key of PATHS. extra: more fields of every body.

    version: of vLLM, where the server says it.
    """

    base: str
    path: str
    backend: str
    model: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None

    @property
    def chat(self) -> bool:
        """Whether prompts go as messages."""
        return self.backend == "openai-chat"

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.base + self.path


def session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """Connections without a bound on their number: a cap that nobody asked for would hold requests back."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
    jar = aiohttp.DummyCookieJar()  # whoever sets cookies would tell one request from the next
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers, cookie_jar=jar)


async def text_of(response: aiohttp.ClientResponse) -> str:
    """What an answer says, up to MOST_BYTES; whatever is no text in it is replaced."""
    found = bytearray()
    async for part in response.content.iter_any():
        found += part
        if len(found) > MOST_BYTES:
            response.close()
            break
    try:
        return found[:MOST_BYTES].decode(response.charset or "utf-8", "replace")
    except LookupError:  # of a charset that nobody knows
        return found[:MOST_BYTES].decode("utf-8", "replace")


def credentials(url: str) -> dict[str, str]:
    """The header that stands for what an address has before its @: a password is sent and never shown."""
    try:
        parsed = URL(url.strip())
    except ValueError:  # `find` tells
        return {}
    if parsed.user is None:
        return {}
    both = f"{parsed.user}:{parsed.password or ''}".encode()
    return {"Authorization": f"Basic {base64.b64encode(both).decode()}"}


def base_of(url: str) -> str:
    """A server's address as users write it, with or without /v1; without credentials. Raises InputError."""
    expected = "must be the address of a server, such as http://127.0.0.1:8000"
    try:
        parsed = URL(url.strip())
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query_string:
            raise ValueError
        assert parsed.port is not None
    except (ValueError, TypeError, AssertionError):
        shown = re.sub("//.*@", "//...@", url, flags=re.DOTALL)
        raise InputError("URL", None, shown, expected) from None
    port = "" if parsed.explicit_port is None else f":{parsed.explicit_port}"
    host = f"[{parsed.raw_host}]" if ":" in (parsed.raw_host or "") else parsed.raw_host
    return f"{parsed.scheme}://{host}{port}{parsed.raw_path}".rstrip("/").removesuffix("/v1")


async def find(
    client: aiohttp.ClientSession,
    url: str,
    backend: str,
    path: str | None,
    model: str | None,
    extra: Mapping[str, Any],
    within: float = CONNECT,
) -> Target:
    """The target, with the model that the server names if none is given. within: seconds for it to answer.

    Raises InputError where it is not there.
    """
    base = base_of(url)
    status, known = await _models(client, base, min(CONNECT, max(within, LEAST)))
    if model is None:
        if not known:
            expected = "names no model: is it the server's address? If so, say which one, with --model"
            raise InputError(base, f"/v1/models, status {status}", None, expected)
        model = known[0]
    elif known and model not in known:
        raise InputError("--model", None, model, f"not served here{nearest(model, known)}; there is {', '.join(known)}")
    return Target(base, path or PATHS[backend], backend, model, extra, await _version(client, base))


async def _models(client: aiohttp.ClientSession, base: str, within: float) -> tuple[int, list[str]]:
    """The status of the answer and the names of the models; none where the server does not tell."""
    try:
        timeout = aiohttp.ClientTimeout(total=within)
        async with client.get(f"{base}/v1/models", timeout=timeout, allow_redirects=False) as response:
            elsewhere(base, response)
            if response.status in (401, 403):
                raise InputError(base, "/v1/models", response.status, "refused: --header 'Authorization=Bearer ...'")
            text = await text_of(response) if response.status == 200 else "{}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise InputError(base, None, None, f"cannot be reached: {reason_of(error)}") from None
    try:
        return response.status, [str(entry["id"]) for entry in json.loads(text).get("data", [])]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InputError(base, "/v1/models", text, "not what an OpenAI-compatible server answers") from None


async def _version(client: aiohttp.ClientSession, base: str) -> str | None:
    """What vLLM answers at /version; None from any other server."""
    try:
        timeout = aiohttp.ClientTimeout(total=VERSION_WAIT)
        async with client.get(f"{base}/version", timeout=timeout, allow_redirects=False) as response:
            found = json.loads(await response.text())["version"] if response.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return found.partition("+")[0] if isinstance(found, str) else None


def elsewhere(url: str, response: aiohttp.ClientResponse) -> None:
    """Raises InputError where the server redirects: a POST would become a GET, and a key go where nobody sent it."""
    place = response.headers.get("Location")
    if 300 <= response.status < 400 and place is not None:
        raise InputError(url, f"status {response.status}", None, f"it redirects: give the address itself, {place}")


def reason_of(error: BaseException) -> str:
    """What went wrong with a connection, in few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer broke off"  # its own words are about chunks and lengths, and long
    if isinstance(error, aiohttp.ClientSSLError) and "WRONG_VERSION" in str(error):
        return "no TLS is spoken there: is it http:// instead of https://?"
    if isinstance(error, aiohttp.ClientSSLError):
        return f"TLS: {shorten(str(getattr(error, 'certificate_error', error.__cause__) or error))[1:-1]}"
    if isinstance(error, aiohttp.ClientResponseError):  # it has a status of its own, which nobody sent
        return f"no answer in HTTP: {shorten(' '.join(error.message.split()))[1:-1]}"
    cause = getattr(error, "os_error", error)
    text = getattr(cause, "strerror", None) or str(error) or type(error).__name__
    return shorten(text)[1:-1]
