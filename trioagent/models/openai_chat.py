"""Models behind the OpenAI Chat Completions API, which many servers speak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from trioagent._events import ReplyPart
from trioagent._ports import ModelRequest

from ._chat_request import encode_request
from ._chat_stream import ChatStream
from ._endpoint import Endpoint, find_key
from ._openai import find_url, own_headers


class OpenAIChat:
    """A model by its name, at OpenAI or at any server that speaks Chat Completions.

    The key is `api_key`, else OPENAI_API_KEY; the server `base_url`, else
    OPENAI_BASE_URL, else OpenAI. A server on this machine needs no key; `api_key=""`
    sends none anywhere.

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
        base_url = find_url(base_url)
        key = find_key(api_key, base_url, "OPENAI_API_KEY")
        self._model = model
        self._extra_body = dict(extra_body or {})
        self._max_tokens_field = max_tokens_field
        self._stream_usage = stream_usage
        self._endpoint = Endpoint(
            f"{provider}:{model}",
            base_url,
            own_headers=own_headers(key),
            headers=headers,
            secrets=[key],
            connections=connections,
        )

    def __repr__(self) -> str:
        return f"OpenAIChat({self._model!r}, base_url={self._endpoint.base_url!r})"

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
            request,
            model=self._model,
            host=host,
            max_tokens_field=self._max_tokens_field,
            stream_usage=self._stream_usage,
            extra_body=self._extra_body,
        )
        return self._endpoint.open_reply(
            "/chat/completions",
            body,
            request,
            lambda reporter: ChatStream(reporter, host=host),
        )
