"""What a server says when it does not answer, as a `ModelError`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from trioagent._errors import ModelError, ModelRefused, ModelUnavailable

from ._keys import hide

# The status, or a status in a code, decides; these kinds know better.
_MAY_RETRY = {
    "tool_use_failed",  # the model wrote a call that the server did not take
    "overloaded",
    "overloaded_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "server_error",
    "timeout",
    "CANCELLED",  # Google's, in the middle of a reply, with a status of 499
}
_NEVER_RETRY = {
    "authentication_error",
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "bio_policy",
    "content_filter",
    "context_length_exceeded",
    "data_residency_mismatch",
    "insufficient_quota",
    "invalid_api_key",
    "invalid_prompt",
    "invalid_request_error",
    "misalignment_policy_violation",
    "model_not_found",
    "not_found_error",
    "permission_error",
    "request_too_large",
    "FAILED_PRECONDITION",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
}
_QUOTA = {
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_quota",
}


class Problem(NamedTuple):
    """What a server says of an error, wherever in the body it says it."""

    message: str
    kinds: tuple[str, ...]  # its type and code, the finer one first
    status: int | None  # one that stands in the body
    request_id: str = ""  # Anthropic's; the header says it too, but a proxy drops it
    retry_after: float | None = None  # seconds; Google says it here and in no header

    @property
    def kind(self) -> str:
        """The word to show and to compare."""
        return self.kinds[0] if self.kinds else str(self.status or "")


def read_problem(body: Any) -> Problem:
    """Find message, kind and status in an error object of any of the known shapes."""
    if isinstance(body, list) and body:  # Google, to who did not ask for events
        body = body[0]
    outer = body if isinstance(body, dict) else {"message": body}
    inner = outer.get("error") or outer
    if not isinstance(inner, dict):
        inner = {"message": inner}
    codes = [where.get(key) for where in (inner, outer) for key in _STATUS_KEYS]
    status = next((s for s in map(_status, codes) if s), None)
    request_id = outer.get("request_id")
    return Problem(
        _read_message(inner, outer),
        _read_kinds(inner, outer),
        status,
        request_id if isinstance(request_id, str) else "",
        _read_delay(inner),
    )


_STATUS_KEYS = ("code", "status", "status_code")
_KIND_KEYS = ("code", "type", "status")  # the last is Google's
_DURATION = re.compile(r"\d{1,9}(\.\d{1,9})?s")  # likewise: 48.9s


def _read_kinds(inner: dict[str, Any], outer: dict[str, Any]) -> tuple[str, ...]:
    kinds = [detail.get("reason") for detail in _details(inner)]
    kinds += [where.get(key) for where in (inner, outer) for key in _KIND_KEYS]
    texts = [kind for kind in kinds if isinstance(kind, str) and kind != "error"]
    return tuple(text for text in texts if not text.isdigit())


def _read_delay(inner: dict[str, Any]) -> float | None:
    delays = (detail.get("retryDelay") for detail in _details(inner))
    found = (d for d in delays if isinstance(d, str) and _DURATION.fullmatch(d))
    return next((float(delay[:-1]) for delay in found), None)


def _details(inner: dict[str, Any]) -> list[dict[str, Any]]:
    details = inner.get("details")
    if not isinstance(details, list):
        return []
    return [detail for detail in details if isinstance(detail, dict)]


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    return value if isinstance(value, int) and 400 <= value < 600 else None


def _read_message(inner: dict[str, Any], outer: dict[str, Any]) -> str:
    keys = ("message", "detail", "msg")
    found = (where.get(key) for where in (inner, outer) for key in keys)
    message = next((value for value in found if value), "")
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    metadata = inner.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("raw"), str):
        message = f"{message}: {metadata['raw']}"  # OpenRouter: the one behind it
    return message


class Reporter:
    """Makes the errors of one request: it knows what to name and what to hide."""

    def __init__(
        self,
        model: str,
        *,
        request_id: str = "",
        retry_after: float | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self._model = model
        self._secrets = secrets
        self.request_id = request_id
        self._retry_after = retry_after

    def failed(
        self, status: int, body: bytes, headers: Mapping[str, str]
    ) -> ModelError:
        """The request was answered with an HTTP error."""
        problem = read_problem(_parse(body))
        ours = _class_of(status, problem)
        never = headers.get("x-should-retry") == "false"
        return ours(
            self._say(f"answered {status} {_phrase(status)}", problem),
            status=status,
            kind=hide(problem.kind, self._secrets),
            request_id=self.request_id or problem.request_id,
            retry_after=self._wait(problem),
            billed="known" if status < 500 else "unknown",
            may_retry=False if never else None,
        )

    def broke_off(self, body: Any, **known: Any) -> ModelError:
        """The server wrote an error where a reply, or more of it, should be."""
        problem = read_problem(body)
        return _class_of(problem.status, problem)(
            self._say("reported an error", problem),
            status=problem.status,
            kind=hide(problem.kind, self._secrets),
            request_id=self.request_id or problem.request_id,
            retry_after=problem.retry_after,
            **known,
        )

    def unusable(self, what: str, kind: str, **known: Any) -> ModelUnavailable:
        """The answer is no reply; `what` says why and quotes nothing of it."""
        return ModelUnavailable(
            f"{self._model} {what}", kind=kind, request_id=self.request_id, **known
        )

    def _wait(self, problem: Problem) -> float | None:
        header = self._retry_after
        return problem.retry_after if header is None else header

    def _say(self, what: str, problem: Problem) -> str:
        kind = f" ({problem.kind})" if problem.kind else ""
        message = f": {problem.message}" if problem.message else ""
        return hide(f"{self._model} {what}{kind}{message}", self._secrets)


def _class_of(status: int | None, problem: Problem) -> type[ModelError]:
    kinds = set(problem.kinds)
    if kinds & _QUOTA:
        return ModelRefused
    if kinds & _MAY_RETRY:
        return ModelUnavailable
    if status is not None:
        return _class_of_status(status)
    return ModelRefused if kinds & _NEVER_RETRY else ModelUnavailable


def _class_of_status(status: int) -> type[ModelError]:
    if status in (408, 409, 429) or status >= 500:
        return ModelUnavailable
    return ModelRefused


def _parse(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace").strip()
        return "" if text.startswith("<") else text  # a web page says nothing here


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
