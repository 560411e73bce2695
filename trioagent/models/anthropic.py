"""Models behind the Anthropic Messages API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from trioagent._events import ReplyPart
from trioagent._ports import ModelRequest

from ._anthropic_request import encode_request
from ._anthropic_stream import AnthropicStream
from ._endpoint import Endpoint, find_key, split_url
from ._keys import check_headers, check_key

MAX_TOKENS = 32_000  # what all models since Claude 4 can write in one reply
_DEFAULT_URL = "https://api.anthropic.com"


class AnthropicMessages:
    """A model by its name, at Anthropic or at any server that speaks Messages.

    The key is `api_key` (sent as x-api-key) or `auth_token` (sent as a bearer token),
    else ANTHROPIC_API_KEY, else ANTHROPIC_AUTH_TOKEN. The server is `base_url`, with or
    without /v1, else ANTHROPIC_BASE_URL, else Anthropic. A server on this machine needs
    no key; `api_key=""` sends none anywhere.

    A reply has at most `max_tokens` tokens, or what is left of the run's limit if that
    is less: the API wants a number, and 32,000 is what every model since Claude 4 can
    write. `extra_body` is added to each request as it is, but for its `tools`, which go
    beside the agent's own (server tools), and its `output_config`, which goes beside
    the format of a structured answer. `headers` are added likewise: put anthropic-beta
    there. `version` is the API's. At most `connections` requests are open at a time.
    `provider` is the first half of the name.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        auth_token: str | None = None,
        base_url: str | None = None,
        version: str = "2023-06-01",
        headers: Mapping[str, str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        max_tokens: int = MAX_TOKENS,
        connections: int = 100,
        provider: str = "anthropic",
    ) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be 1 or more, not {max_tokens}")
        base_url = base_url or os.environ.get("ANTHROPIC_BASE_URL") or _DEFAULT_URL
        keys = _key_headers(api_key, auth_token, base_url)
        self._model = model
        self._extra_body = dict(extra_body or {})
        self._max_tokens = max_tokens
        has_v1 = split_url(base_url).path.rstrip("/").endswith("/v1")
        self._path = "/messages" if has_v1 else "/v1/messages"
        self._endpoint = Endpoint(
            f"{provider}:{model}",
            base_url,
            own_headers=check_headers({"anthropic-version": version}) | keys,
            headers=headers,
            secrets=[value.removeprefix("Bearer ") for value in keys.values()],
            connections=connections,
        )

    def __repr__(self) -> str:
        url = self._endpoint.base_url
        return f"AnthropicMessages({self._model!r}, base_url={url!r})"

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
            max_tokens=self._max_tokens,
            extra_body=self._extra_body,
        )
        return self._endpoint.open_reply(
            self._path,
            body,
            request,
            lambda reporter: AnthropicStream(reporter, host=host),
        )


def _key_headers(
    api_key: str | None, auth_token: str | None, base_url: str
) -> dict[str, str]:
    """What is given counts; if nothing is, the environment, and a key before a token.

    Raises ValueError as `find_key` does.
    """
    source = "auth_token"
    if api_key is None and auth_token is None:
        source = "the environment variable ANTHROPIC_AUTH_TOKEN"
        if not os.environ.get("ANTHROPIC_API_KEY"):
            auth_token = os.environ.get("ANTHROPIC_AUTH_TOKEN") or None
    headers = {}
    if auth_token:
        headers["authorization"] = f"Bearer {check_key(auth_token, source=source)}"
    if auth_token is not None and api_key is None:
        return headers
    if key := find_key(api_key, base_url, "ANTHROPIC_API_KEY"):
        headers["x-api-key"] = key
    return headers
