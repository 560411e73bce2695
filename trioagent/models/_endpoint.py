"""Where a model is asked: an address, a key, connections; one question at a time."""

from __future__ import annotations

import ipaddress
import math
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, urlsplit

import trio

from trioagent._errors import ModelError
from trioagent._events import KeepAlive, ReplyOpened, ReplyPart, UserMessage
from trioagent._ports import ModelRequest

from ._body import Body, Stream
from ._http_errors import request_id, retry_after
from ._keys import check_headers, check_key
from ._problems import Reporter

if TYPE_CHECKING:  # `_http` is imported where it is used: it loads httpx
    from ._http import Answer

# Between the end of a reply and what may follow it: its usage and [DONE]. A server that
# then neither says more nor ends the body must not hold a reply that is whole.
TAIL_SECONDS = 2.0
EXAMPLE_URL = "https://api.openai.com/v1"


class Endpoint:
    """What the adapters of all wire formats share. Each has one, and enters it.

    `own_headers` are the adapter's, `headers` the caller's, who wins. What stands in
    the caller's and in `secrets` is hidden from every error.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        own_headers: Mapping[str, str],
        headers: Mapping[str, str] | None,
        secrets: list[str],
        connections: int,
    ) -> None:
        from ._http import HttpClient  # here, so that the import stays light

        self.name = name
        self.base_url = base_url
        self._split = split_url(base_url)
        self.host = self._split.netloc
        extra = check_headers(headers or {})
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # compression would hold pieces back
            "user-agent": "trioagent",
            **own_headers,
            **extra,
        }
        # A server may quote what it was sent.
        self._secrets = [*filter(None, secrets), *extra.values()]
        self._http = HttpClient(connections=connections)

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
        self,
        path: str,
        body: bytes,
        request: ModelRequest,
        make_stream: Callable[[Reporter], Stream],
        *,
        query: str = "",
        tail_seconds: float = TAIL_SECONDS,
    ) -> AsyncIterator[AsyncIterator[ReplyPart]]:
        """POST `body` to `path` below the address; see `Model.open_reply`."""
        url = _join(self._split, path, query)
        async with self._http.open_stream(
            url,
            headers=self._headers,
            body=body,
            connect_seconds=request.connect_seconds,
        ) as answer:
            reporter = Reporter(
                self.name,
                request_id=request_id(answer.headers),
                retry_after=retry_after(answer.headers),
                secrets=_Unquoted(self._secrets, request),
            )
            if answer.status >= 300:
                problem = await answer.read_problem()
                raise reporter.failed(answer.status, problem, answer.headers)
            yield _Parts(answer, Body(make_stream(reporter)), tail_seconds)


class _Parts:
    """The pieces of one reply as they come, then the whole of it, then the end.

    An object and no generator: leaving it early leaves nothing to be finalized.
    """

    def __init__(self, answer: Answer, body: Body, tail_seconds: float) -> None:
        self._answer = answer
        self._body = body
        self._tail_seconds = tail_seconds
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
        said: list[ReplyPart] = []
        try:
            with trio.CancelScope(deadline=self._tail):
                data = await anext(self._answer, None)
            said = self._body.end() if data is None else self._body.feed(data)
            self._ready += said if said or data is None else [KeepAlive()]
        except ModelError as error:
            stream.fail(error)
        if data is None or stream.done:
            self._end()
        elif stream.is_finished and (said or self._tail == math.inf):
            self._tail = trio.current_time() + self._tail_seconds

    def _end(self) -> None:
        self._over = True
        try:
            self._ready.append(self._body.stream.finish())
            self._answer.complete = True
        except ModelError as error:  # what came before it is handed out first
            self._problem = error


def _join(base: SplitResult, path: str, query: str) -> str:
    queries = filter(None, (base.query, query))
    path = base.path.rstrip("/") + path
    return base._replace(path=path, query="&".join(queries)).geturl()


def split_url(base_url: str) -> SplitResult:
    url = urlsplit(base_url)
    if url.username or url.password:
        raise ValueError(
            "base_url holds a user name or a password; URLs are logged. Use `headers`"
        )
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"base_url must be a URL like {EXAMPLE_URL}, not {base_url!r}")
    return url


def find_key(api_key: str | None, url: str, *variables: str) -> str:
    """The key: as given, else from the environment, else none for this machine.

    Raises ValueError, without the key, for one that no header can hold, and naming the
    remedy where there is none.
    """
    if api_key is not None:
        return api_key and check_key(api_key, source="api_key")
    for variable in variables:
        if key := os.environ.get(variable, ""):
            return check_key(key, source=f"the environment variable {variable}")
    if _is_loopback(split_url(url).hostname or ""):
        return ""
    raise ValueError(
        f"no API key: give api_key=, or set the environment variable {variables[0]}"
        ' (api_key="" for a server that wants none)'
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Unquoted:
    """What must not be quoted in an error text; looked up only where there is one."""

    def __init__(self, secrets: Iterable[str], request: ModelRequest) -> None:
        self._secrets = secrets
        self._request = request

    def __iter__(self) -> Iterator[str]:
        yield from self._secrets
        yield self._request.instructions
        for message in self._request.messages:
            if isinstance(message, UserMessage):
                yield message.text
