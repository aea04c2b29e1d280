"""What OpenAI's API says, as far as this server speaks it: bodies that come in, and answers that go out."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchlab.clients.request import TokenIdentity
from batchlab.settings import LATEST, MOST_TOKENS, place
from batchlab.units import NS_IN_MS

BYTES_A_TOKEN = 4
"""A text has a token for every four bytes of its UTF-8, rounded up: about what English has in real tokenizers."""
WORD = "tok "
"""The text of every output token: one token by the same rule."""
DEFAULT_TOKENS = 16
"""max_tokens where a body has none, as OpenAI's completions have it."""

Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
T = TypeVar("T")
Listed = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused at its first wrong element: one error for each of a million takes seconds, and gigabytes."""
TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "TooManyRequestsError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}


class ApiError(Exception):
    """An answer that is an error: status, message, and which field of the body it is about."""

    def __init__(self, status: int, message: str, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def document(self) -> dict[str, Any]:
        """In OpenAI's form."""
        kind = TYPES.get(self.status, "BadRequestError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


class StreamOptions(BaseModel):
    """Whether the stream ends with the usage, or has it in every chunk."""

    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(BaseModel):
    """What both kinds of requests have. Fields that are not here are ignored, as vLLM does."""

    model_config = ConfigDict(strict=True)
    model: str | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31)] | None = None
    deadline_ms: Annotated[int, Field(ge=1, le=LATEST // NS_IN_MS)] | None = None
    n: Literal[1] | None = None

    @property
    def limit(self) -> int:
        """Output tokens to come."""
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens

    def prompt_tokens(self) -> list[int] | list[bytes]:
        """The prompt's tokens: ids as given, or the pieces of a text. Raises ApiError."""
        raise NotImplementedError


class Completion(Body):
    """POST /v1/completions. What would change the form of the answer is refused."""

    prompt: str | Listed[TokenId] | Listed[str] | Listed[Listed[TokenId]]
    echo: Literal[False] | None = None
    logprobs: None = None
    best_of: Literal[1] | None = None

    def prompt_tokens(self) -> list[int] | list[bytes]:
        """The tokens; a list of prompts may hold one."""
        given: Any = self.prompt
        if isinstance(given, list) and given and not isinstance(given[0], int):
            if len(given) > 1:
                raise ApiError(400, f"prompt: one prompt a request, not {len(given)}", "prompt")
            given = given[0]
        tokens: list[int] | list[bytes] = pieces(given) if isinstance(given, str) else given
        if not tokens:
            raise ApiError(400, "prompt: must not be empty", "prompt")
        return tokens


class Part(BaseModel):
    """A part of a message's content: text alone."""

    model_config = ConfigDict(strict=True)
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(strict=True)
    role: str
    content: str | Listed[Part] | None = None


class Chat(Body):
    """POST /v1/chat/completions."""

    messages: Annotated[Listed[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: Literal[False] | None = None

    @property
    def limit(self) -> int:
        """max_completion_tokens goes before its older name."""
        return super().limit if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt_tokens(self) -> list[int] | list[bytes]:
        """Those of all contents, each beginning a new token; a message has one more, for its role."""
        found: list[bytes] = []
        for message in self.messages:
            content = message.content or ""
            text = content if isinstance(content, str) else "".join(part.text for part in content)
            found += [message.role.encode(), *pieces(text)]
        return found


def parse(kind: type[Body], data: bytes) -> Body:
    """A body, checked. Raises ApiError."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise ApiError(400, f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}") from None
        field = place(first["loc"][:1])
        if field == "prompt" and first["type"] != "missing":  # of a union pydantic names one member only
            raise ApiError(400, "prompt: must be a text, or a list of token ids from 0 to 2^31 - 1", "prompt") from None
        where, said = first["loc"], first["msg"]
        if "content" in where:  # a union too, whose members pydantic counts to the place
            where, said = where[: where.index("content") + 1], "must be a text, or a list of parts of type text"
        raise ApiError(400, f"{place(where) or 'body'}: {said}", field or None) from None


def pieces(text: str) -> list[bytes]:
    """A text cut into tokens."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, "a text holds half of a surrogate pair, which is no character") from None
    return [data[start : start + BYTES_A_TOKEN] for start in range(0, len(data), BYTES_A_TOKEN)]


def identity(tokens: list[int] | list[bytes], block_size: int, position: int) -> TokenIdentity:
    """Which tokens a prompt has, for a prefix cache that looks at whole blocks: equal blocks are equal segments."""
    runs = []
    for start in range(0, len(tokens), block_size):
        block = tokens[start : start + block_size]
        digest = blake2b(repr(block).encode(), digest_size=8).digest()
        runs.append((int.from_bytes(digest) >> 2, 0, len(block)))
    return TokenIdentity(tuple(runs), -position - 1)


class Answer:
    """Builds what goes out for one request."""

    def __init__(self, chat: bool, id: str, model: str, created: int, body: Body, prompt: list[int] | list[bytes]):
        self._chat = chat
        self._head = {"id": id, "created": created, "model": model}
        self._body = body
        self._prompt = prompt
        options = body.stream_options or StreamOptions()
        self.usage_last = bool(options.include_usage)
        self._usage_always = bool(options.continuous_usage_stats)

    def chunk(self, start: int, end: int, last: bool) -> bytes:
        """An event with the output tokens from start to end."""
        text, first = WORD * (end - start), start == 0
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["delta"] = {"role": "assistant", "content": text} if first else {"content": text}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": "length" if last else None}
        if self._body.return_token_ids:
            choice["token_ids"] = list(range(start, end))
            if first and not self._chat:
                choice["prompt_token_ids"] = self._ids()
        document = {**self._head, "object": self._object(".chunk"), "choices": [choice]}
        if self._body.return_token_ids and first and self._chat:
            document["prompt_token_ids"] = self._ids()
        if self._usage_always:
            document["usage"] = self._usage(end)
        return event(document)

    def usage_chunk(self, tokens: int) -> bytes:
        """The last event but one, if it was asked for."""
        return event({**self._head, "object": self._object(".chunk"), "choices": [], "usage": self._usage(tokens)})

    def whole(self, tokens: int) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        text = WORD * tokens
        choice: dict[str, Any] = {"index": 0}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": "length"}
        document = {**self._head, "object": self._object(""), "choices": [choice], "usage": self._usage(tokens)}
        if self._body.return_token_ids:
            choice["token_ids"] = list(range(tokens))
            (document if self._chat else choice)["prompt_token_ids"] = self._ids()
        return document

    def _ids(self) -> list[int]:
        """A text's tokens have no ids: they are numbered."""
        return [token if isinstance(token, int) else place for place, token in enumerate(self._prompt)]

    def _object(self, ending: str) -> str:
        return f"chat.completion{ending}" if self._chat else "text_completion"

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = len(self._prompt)
        return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def event(document: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
