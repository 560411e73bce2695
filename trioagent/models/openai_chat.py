"""Models behind the OpenAI Chat Completions API, which many servers speak."""

from __future__ import annotations

import ipaddress
import math
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import SplitResult, urlsplit

import trio

from trioagent._errors import ModelError
from trioagent._events import (
    KeepAlive,
    Message,
    ReplyOpened,
    ReplyPart,
    UserMessage,
)
from trioagent._ports import ModelRequest

from ._chat_body import ChatBody
from ._chat_errors import Reporter
from ._chat_request import encode_request
from ._chat_stream import ChatStream
from ._http_errors import request_id, retry_after
from ._keys import check_headers, check_key

if TYPE_CHECKING:  # `_http` is imported where it is used: it loads httpx
    from ._http import Answer

# Between the end of a reply and what may follow it: its usage and [DONE]. A server that
# then neither says [DONE] nor ends the body must not hold a reply that is whole.
TAIL_SECONDS = 2.0
_DEFAULT_URL = "https://api.openai.com/v1"


class OpenAIChat:
    """A model by its name, at OpenAI or at any server that speaks Chat Completions.

    The key is `api_key`, else OPENAI_API_KEY; the server `base_url`, else
    OPENAI_BASE_URL, else OpenAI. A server on this machine needs no key, and gets none
    unless `api_key` names it; `api_key=""` sends none anywhere.

    Some servers want `max_tokens_field="max_tokens"`, or refuse `stream_options`
    (`stream_usage=False`; then nobody knows the usage). `extra_body` is added to each
    request as it is, `headers` likewise. At most `connections` requests are open at a
    time. `provider` is the first half of the name.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        max_tokens_field: str = "max_completion_tokens",
        stream_usage: bool = True,
        connections: int = 100,
        provider: str = "openai",
    ) -> None:
        from ._http import HttpClient  # here, so that the import stays light

        base_url = base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL
        url = _split(base_url)
        key = _find_key(api_key, url)
        extra_headers = check_headers(headers or {})
        self._name = f"{provider}:{model}"
        self._model = model
        self._base_url = base_url
        self._host = url.netloc
        path = url.path.rstrip("/") + "/chat/completions"
        self._url = url._replace(path=path).geturl()
        self._headers = _headers(key) | extra_headers
        # A server may quote what it was sent.
        self._secrets = [*([key] if key else []), *extra_headers.values()]
        self._extra_body = dict(extra_body or {})
        self._max_tokens_field = max_tokens_field
        self._stream_usage = stream_usage
        self._http = HttpClient(connections=connections)

    def __repr__(self) -> str:
        return f"OpenAIChat({self._model!r}, base_url={self._base_url!r})"

    @property
    def name(self) -> str:
        """`provider:model`."""
        return self._name

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(  # noqa: ASYNC102 - it shields itself, with a bound
            kind, error, traceback
        )

    @asynccontextmanager
    async def open_reply(
        self, request: ModelRequest
    ) -> AsyncIterator[AsyncIterator[ReplyPart]]:
        """Ask once; see `Model.open_reply`."""
        body = encode_request(
            request,
            model=self._model,
            host=self._host,
            max_tokens_field=self._max_tokens_field,
            stream_usage=self._stream_usage,
            extra_body=self._extra_body,
        )
        async with self._http.open_stream(
            self._url,
            headers=self._headers,
            body=body,
            connect_seconds=request.connect_seconds,
        ) as answer:
            reporter = Reporter(
                self._name,
                request_id=request_id(answer.headers),
                retry_after=retry_after(answer.headers),
                secrets=[*self._secrets, *_prompts(request)],
            )
            if answer.status >= 300:
                problem = await answer.read_problem()
                raise reporter.failed(answer.status, problem, answer.headers)
            yield _Parts(answer, ChatBody(ChatStream(reporter, host=self._host)))


class _Parts:
    """The pieces of one reply as they come, then the whole of it, then the end.

    An object and no generator: leaving it early leaves nothing to be finalized.
    """

    def __init__(self, answer: Answer, body: ChatBody) -> None:
        self._answer = answer
        self._body = body
        self._ready: deque[ReplyPart] = deque([ReplyOpened(request_id(answer.headers))])
        self._over = False
        self._problem: ModelError | None = None
        self._tail = math.inf  # when to stop waiting for what follows the reply

    def __aiter__(self) -> Self:
        return self

    # Pieces that came in one read are handed out without a checkpoint in between; there
    # is one before each read, and a read brings at most 64 kB.
    async def __anext__(self) -> ReplyPart:
        while not self._ready:
            if self._over:
                raise self._problem or StopAsyncIteration
            await self._read()
        return self._ready.popleft()  # noqa: ASYNC910

    async def _read(self) -> None:  # noqa: ASYNC910 - its tail may end it
        stream = self._body.stream
        data = None
        try:
            with trio.CancelScope(deadline=self._tail):
                data = await anext(self._answer, None)
            if data is None:
                self._ready += self._body.end()
            else:
                self._ready += self._body.feed(data) or [KeepAlive()]
        except ModelError as error:
            stream.fail(error)
        if data is None or stream.done:
            self._end()
        elif stream.is_finished and self._tail == math.inf:
            self._tail = trio.current_time() + TAIL_SECONDS

    def _end(self) -> None:
        self._over = True
        try:
            self._ready.append(self._body.stream.finish())
            self._answer.complete = True
        except ModelError as error:  # what came before it is handed out first
            self._problem = error


def _split(base_url: str) -> SplitResult:
    url = urlsplit(base_url)
    if url.username or url.password:
        raise ValueError(
            "base_url holds a user name or a password; URLs are logged. Use `headers`"
        )
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(
            f"base_url must be a URL like {_DEFAULT_URL}, not {base_url!r}"
        )
    return url


def _find_key(api_key: str | None, url: SplitResult) -> str:
    if api_key is not None:
        return api_key and check_key(api_key, source="api_key")
    if _is_loopback(url.hostname or ""):
        return ""
    key = os.environ.get("OPENAI_API_KEY", "")
    if not key:
        raise ValueError(
            "no API key: give api_key=, or set the environment variable OPENAI_API_KEY"
            ' (api_key="" for a server that wants none)'
        )
    return check_key(key, source="the environment variable OPENAI_API_KEY")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _headers(key: str) -> dict[str, str]:
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",  # compression would hold pieces back
        "user-agent": "trioagent",
    }
    if key:
        headers["authorization"] = f"Bearer {key}"
    for header, variable in (
        ("openai-organization", "OPENAI_ORG_ID"),
        ("openai-project", "OPENAI_PROJECT_ID"),
    ):
        if value := os.environ.get(variable):
            headers[header] = check_key(value, source=variable)
    return headers


def _prompts(request: ModelRequest) -> list[str]:
    """What must not be quoted in an error text."""
    messages: list[Message] = list(request.messages)
    said = [m.text for m in messages if isinstance(m, UserMessage)]
    return [request.instructions, *said]
