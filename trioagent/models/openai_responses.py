"""Models behind the OpenAI Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from trioagent._events import ReplyPart
from trioagent._ports import ModelRequest

from ._endpoint import Endpoint, find_key
from ._openai import find_url, own_headers
from ._responses_request import encode_request
from ._responses_stream import ResponsesStream


class OpenAIResponses:
    """A model by its name, at OpenAI or at any server that speaks the Responses API.

    The key is `api_key`, else OPENAI_API_KEY; the server `base_url`, else
    OPENAI_BASE_URL, else OpenAI. A server on this machine needs no key, and gets none
    unless `api_key` names it; `api_key=""` sends none anywhere.

    Nothing is stored at the server: reasoning comes encrypted and goes back with the
    history. `extra_body` is added to each request as it is and wins over what stands
    there (`{"store": True}`), `headers` likewise. At most `connections` requests are
    open at a time. `provider` is the first half of the name.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        connections: int = 100,
        provider: str = "openai-responses",
    ) -> None:
        base_url = find_url(base_url)
        key = find_key(api_key, base_url, "OPENAI_API_KEY")
        self._model = model
        self._extra_body = dict(extra_body or {})
        self._endpoint = Endpoint(
            f"{provider}:{model}",
            base_url,
            own_headers=own_headers(key),
            headers=headers,
            secrets=[key],
            connections=connections,
        )

    def __repr__(self) -> str:
        return f"OpenAIResponses({self._model!r}, base_url={self._endpoint.base_url!r})"

    @property
    def name(self) -> str:
        """`provider:model`."""
        return self._endpoint.name

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._endpoint.__aexit__(  # noqa: ASYNC102 - it bounds itself
            kind, error, traceback
        )

    def open_reply(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ReplyPart]]:
        """Ask once; see `Model.open_reply`."""
        host = self._endpoint.host
        body = encode_request(
            request, model=self._model, host=host, extra_body=self._extra_body
        )
        return self._endpoint.open_reply(
            "/responses",
            body,
            request,
            lambda reporter: ResponsesStream(reporter, host=host),
        )
