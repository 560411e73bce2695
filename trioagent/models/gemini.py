"""Models behind Google's Gemini API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from trioagent._events import ReplyPart
from trioagent._ports import ModelRequest

from ._endpoint import Endpoint, find_key
from ._gemini_request import encode_request
from ._gemini_stream import GeminiStream

_DEFAULT_URL = "https://generativelanguage.googleapis.com/v1beta"
# More may follow a finish reason, after code that runs at Google's for up to 30 s.
_TAIL_SECONDS = 35.0


class Gemini:
    """A model by its name, at Google or at any server that speaks its Gemini API.

    The key is `api_key`, else GEMINI_API_KEY, else GOOGLE_API_KEY; the server
    `base_url`, else GEMINI_BASE_URL, else Google. A server on this machine needs no
    key, and gets none unless `api_key` names it; `api_key=""` sends none anywhere, for
    Vertex AI, where `headers` hold a token.

    `extra_body` is added to each request as it is, its `generationConfig` to ours;
    `headers` likewise. At most `connections` requests are open at a time. `provider` is
    the first half of the name.
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
        provider: str = "gemini",
    ) -> None:
        base_url = base_url or os.environ.get("GEMINI_BASE_URL") or _DEFAULT_URL
        key = find_key(api_key, base_url, "GEMINI_API_KEY", "GOOGLE_API_KEY")
        self._model = model
        self._extra_body = dict(extra_body or {})
        # In a header and never in the URL, which is logged.
        self._endpoint = Endpoint(
            f"{provider}:{model}",
            base_url,
            own_headers={"x-goog-api-key": key} if key else {},
            headers=headers,
            secrets=[key],
            connections=connections,
        )

    def __repr__(self) -> str:
        return f"Gemini({self._model!r}, base_url={self._endpoint.base_url!r})"

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
        return self._endpoint.open_reply(
            f"/{_resource(self._model)}:streamGenerateContent",
            encode_request(request, host=host, extra_body=self._extra_body),
            request,
            lambda reporter: GeminiStream(reporter, host=host),
            query="alt=sse",
            tail_seconds=_TAIL_SECONDS,
        )


def _resource(model: str) -> str:
    """The model's place below the address; a tuned one brings its own folder."""
    return quote(model if "/" in model else f"models/{model}")
