"""Every error trioagent raises.

    AgentError
    ├─ ModelError           no usable reply; carries what is known of the attempt
    │  ├─ ModelTimeout      no connection, no first token, silence, or no whole reply in
    │  │                    time. The provider may still have produced, and billed, one
    │  ├─ ModelAborted      a stop cut the call. Never retried, never held against the
    │  │                    provider
    │  ├─ ModelUnavailable  try again later: 408, 409, 429, 5xx, overloaded, a broken
    │  │                    connection, a stream that ended before the reply did
    │  └─ ModelRefused      do not try again: a bad request, key, model name or quota
    ├─ ToolError            raised BY a tool: it failed and nothing happened
    ├─ StoreError           the journal could not be written or read
    └─ RunNotCompleted      from `Outcome.unwrap`, and from nothing else
    ImpossibleEvent         a bug in trioagent

How a run ends is not an error: see `Outcome`. Misuse raises TypeError or ValueError and
names the option. No message holds a key or a prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ._events import Stop, Usage

if TYPE_CHECKING:  # only for the annotation: it lives further up
    from ._outcome import Outcome


class AgentError(Exception):
    """Base class of the errors above."""


class ModelError(AgentError):
    """The model could not be asked, or gave no usable reply."""

    code: ClassVar[str] = "llm_error"
    may_retry: bool = False

    def __init__(
        self,
        message: str,
        *,
        scope: str = "reply",
        status: int | None = None,
        kind: str = "",
        request_id: str = "",
        response_id: str = "",
        retry_after: float | None = None,
        usage: Usage | None = None,
        billed: str = "unknown",
        may_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.scope = scope  # the clock that ran out: connect, first_token, silence…
        self.status = status  # of the HTTP response
        self.kind = kind  # the provider's own type or code of the error
        self.request_id, self.response_id = request_id, response_id
        self.retry_after = retry_after  # seconds the provider asks us to wait
        self.usage = usage or Usage()  # what it reported before the end
        self.billed = billed  # known: `usage` is the bill. unknown: it may be more
        if may_retry is not None:
            self.may_retry = may_retry

    @property
    def stop(self) -> Stop:
        """Why the run ends that it ends."""
        return Stop(self.code, str(self), self.scope, source="model")


class ModelTimeout(ModelError):
    """No reply in time; `scope` names the clock. It may have been produced and billed.

    Unlike `ModelAborted`, it is the provider that was slow.
    """

    code = "llm_timeout"
    may_retry = True


class ModelAborted(ModelError):
    """A stop cut the call. Unlike `ModelTimeout`, it says nothing of the provider."""

    code = "llm_aborted"


class ModelUnavailable(ModelError):
    """The provider cannot answer now, or broke off. `ModelRefused` is for good."""

    code = "llm_unavailable"
    may_retry = True


class ModelRefused(ModelError):
    """The provider will not answer this request. Asking again will not help."""

    code = "llm_refused"


class ToolError(AgentError):
    """Raise this in a tool to say: it failed, and nothing happened.

    The message is told to the model. Any other exception from a tool with an effect
    leaves that effect uncertain. With `fatal=True` the run ends as failed: the other
    calls of the turn are cancelled and awaited, and finished ones are kept.
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal

    @property
    def stop(self) -> Stop:
        """Why the run ends that it ends, where it has no tools to work with."""
        return Stop("no_tools", str(self), scope="tool", source="tool")


class StoreError(AgentError):
    """The run's events could not be kept or read.

    `code` is for programs: `missing` (no journal there), `corrupt`, `newer` (written by
    a later version), `busy`, `full`, `io`, `hung`, `unknown_run`, `exists`, `owned`
    (somebody carries the run), `fenced` (somebody else has taken it over), `error`.
    """

    def __init__(self, message: str, *, code: str = "error") -> None:
        super().__init__(message)
        self.code = code


class RunNotCompleted(AgentError):
    """Raised by `Outcome.unwrap` when there is no answer to give; see `outcome`."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"the run ended as {outcome.status}: {outcome.stop_reason}")
        self.outcome = outcome


class ImpossibleEvent(RuntimeError):
    """The event cannot follow what already happened: a bug in trioagent."""
