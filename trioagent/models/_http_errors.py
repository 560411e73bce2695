"""What the HTTP library raises, in our words; and what the headers say of waiting."""

from __future__ import annotations

import email.utils
import math
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from trioagent._errors import ModelError, ModelRefused, ModelUnavailable

_REQUEST_IDS = (
    "x-request-id",
    "apim-request-id",
    "x-generation-id",
    "mistral-correlation-id",
    "x-ds-trace-id",
    "request-id",
)


class _Row(NamedTuple):
    ours: type[ModelError]
    kind: str
    what: str
    billed: str = "known"
    # A protocol error quotes the header it did not like, or the bytes the server sent,
    # and either can hold a key. Then the original is not kept, not even as the cause.
    may_show: bool = False


_BROKEN = _Row(
    ModelUnavailable,
    "connection_lost",
    "the connection to {host} broke",
    "unknown",
    True,
)
# By the name of the exception's class or of a base of it: httpx, httpcore and h11 use
# the same names, and this file need not import them.
_TABLE = {
    "LocalProtocolError": _Row(
        ModelRefused,
        "bad_request",
        "the request to {host} cannot be sent: a header or the address is not valid",
    ),
    "UnsupportedProtocol": _Row(
        ModelRefused, "bad_request", "base_url must begin with http:// or https://"
    ),
    "InvalidURL": _Row(ModelRefused, "bad_request", "base_url is not a URL"),
    "ProxyError": _Row(
        ModelUnavailable, "proxy", "the proxy did not connect to {host}"
    ),
    "ConnectError": _Row(
        ModelUnavailable, "connect", "could not connect to {host}", may_show=True
    ),
    "RemoteProtocolError": _Row(
        ModelUnavailable,
        "connection_lost",
        "{host} closed the connection before its answer was whole, or spoke no HTTP",
        "unknown",
    ),
    "error": _Row(  # zlib's
        ModelUnavailable,
        "bad_encoding",
        "the answer of {host} could not be decompressed",
        "unknown",
    ),
    "SSLCertVerificationError": _Row(
        ModelRefused, "certificate", "the certificate of {host} is not trusted"
    ),
}


def translate(error: Exception, host: str) -> ModelError:
    """Our error for one of the HTTP library's. It quotes no header and no body."""
    row = _find_row(error)
    problem = row.ours(row.what.format(host=host), kind=row.kind, billed=row.billed)
    problem.__cause__ = error if row.may_show else None
    return problem


def _find_row(error: Exception) -> _Row:
    # A bad certificate comes as a failed connection; what failed is deep in the chain.
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _chain(error)):
        return _TABLE["SSLCertVerificationError"]
    names = (base.__name__ for base in type(error).__mro__)
    return next((_TABLE[name] for name in names if name in _TABLE), _BROKEN)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def request_id(headers: Mapping[str, str]) -> str:
    """What the provider calls the request, for disputes."""
    found = (headers.get(name) for name in _REQUEST_IDS)
    return next((value for value in found if value), "")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds to wait: `retry-after-ms`, or `retry-after` in seconds or a date."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    try:
        date = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None
