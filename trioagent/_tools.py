"""A tool: something the model may ask for. One call becomes exactly one event."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypedDict, Unpack, overload

import msgspec
import trio

from ._errors import ToolError
from ._events import Effect, EffectStatus, ToolCall, ToolEnded, ToolLost, ToolNotRun
from ._foreign import call_in_thread, cancels_of, check, clean
from ._limits import check_number
from ._ports import Approve, Reconcile, ToolSpec
from ._schema import arguments_of, schema_of


class SubAgentLeft(Exception):
    """Raised by a tool of ours: its agent's run is not done, and may go on later.

    `code` is `paused` (it waits for a person), `review` (a person has to settle an
    effect) or `child` (an effect is uncertain, and may be cleared up by a resume).
    """

    def __init__(self, message: str, *, code: str, acted: bool) -> None:
        super().__init__(message)
        self.code, self.acted = code, acted


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a tool may know of its call, for a parameter that is annotated so."""

    run_id: str
    call: ToolCall
    idempotency_key: str = field(repr=False)  # the same on every attempt of this call
    grace_seconds: float
    remaining: Callable[[], float]  # seconds until the first deadline around this call
    cancel: Callable[[str], bool]  # ends the run now; gives the reason
    show: Callable[[str], Any]  # to readers, while it runs; await it in an async tool
    in_thread: bool = False

    def check(self) -> None:
        """As `trioagent.check`, for a tool that is a plain function."""
        check()

    @property
    def call_id(self) -> str:
        """Identifies the call within its run: turn.position."""
        return f"{self.call.turn}.{self.call.position}"

    @contextmanager
    def cleanup(self, seconds: float | None = None) -> Iterator[trio.CancelScope]:
        """A shield for what a tool has to do on its way out, in `finally`.

        Without it the first await there is cancelled again at once. It holds for
        `seconds`, and for the run's `grace_seconds` at most.
        """
        if self.in_thread:
            raise RuntimeError("cleanup() is for async tools: nothing cancels a thread")
        bound = min(seconds or self.grace_seconds, self.grace_seconds)
        with trio.move_on_after(bound, shield=True) as scope:
            yield scope


class Toolset(Protocol):
    """Tools that are there while something is held open, such as a server.

    A run enters it at its start and leaves it at its end; `async with agent` enters it
    around several runs. It must allow being entered by many runs at once. Entering
    raises `ToolError` where there are no tools to be had: the run fails then, before
    its first request.
    """

    @property
    def name(self) -> str:
        """For the cleanup report and for errors."""
        ...

    async def __aenter__(self) -> Sequence[Tool]:
        """The tools."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Bounds its own closing."""
        ...


@dataclass(frozen=True)
class Tool:
    """A function, its schema, and what it does to the world.

    Made by `@tool`. It can be called like the function it was made from.
    """

    name: str
    fn: Callable[..., Awaitable[Any]]
    _: KW_ONLY
    description: str = ""
    arguments: type[msgspec.Struct] = msgspec.Struct
    # Of somebody else's tool, in place of `arguments`: `fn` takes them as they came, as
    # one dict named `arguments`, and whoever has the tool looks whether they fit.
    schema: dict[str, Any] | None = field(default=None, hash=False)
    effect: Effect = Effect.ONCE
    seconds: float | None = None  # of one call; None: Limits.tool_seconds
    grace_seconds: float | None = None  # None: 0 for a read, else Limits
    needs_seconds: float = 0.0  # not started when less is left
    fallback: Tool | None = None  # runs instead when too little is left
    retries: int = 0  # of a read that got no result in time
    reconcile: Reconcile | None = None  # looks an uncertain effect up
    compensate: Callable[[ToolCall, str], Any] | None = None  # undoes one
    approve: Approve | None = None  # asked before a call begins
    # Held open from the start of a run to its end. Many runs may enter it at once.
    needs: AbstractAsyncContextManager[Any] | None = None
    context: str | None = None  # the parameter that takes a ToolContext
    in_thread: bool = False
    threads: str = "wait"  # or cooperative, abandon: what a stop does to its thread
    sequential: bool = False  # runs alone: after the calls before it, before the others
    most_calls: int | None = None  # in one run
    sub_agent: str = ""  # the name of the agent that does it, where one does

    def __post_init__(self) -> None:
        for option, least in (
            ("seconds", None),
            ("grace_seconds", 0),
            ("needs_seconds", 0),
        ):
            if (value := getattr(self, option)) is not None:
                check_number(f"@tool {self.name}: {option}", value, least=least)
        check_number(f"@tool {self.name}: retries", self.retries, least=0)
        if self.most_calls is not None:
            check_number(f"@tool {self.name}: most_calls", self.most_calls, least=1)
        for option in ("retries", "reconcile", "compensate"):
            value = getattr(self, option)
            if value and (option == "retries") != (self.effect is Effect.READ):
                raise ValueError(
                    f"@tool {self.name}: {option} does not go with effect={self.effect}"
                )
            if option != "retries" and not (value is None or callable(value)):
                raise TypeError(f"@tool {self.name}: {option} takes a function")

        check_approve(f"@tool {self.name}: approve", self.approve)

    @property
    def recovery(self) -> str:
        """How an unknown end can be cleared up without a person."""
        if self.reconcile:
            return "reconcile"
        return "compensate" if self.compensate else ""

    @cached_property
    def spec(self) -> ToolSpec:
        """What a model is told of it."""
        schema = schema_of(self.arguments) if self.schema is None else self.schema
        return ToolSpec(name=self.name, description=self.description, parameters=schema)

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return self.fn(*args, **kwargs)

    def read_arguments(self, call: ToolCall) -> dict[str, Any]:
        """The call's arguments as the function takes them.

        Raises ValueError, in words for the model, if they are not JSON or do not fit.
        """
        kind: Any = self.arguments if self.schema is None else dict[str, Any]
        try:
            read = msgspec.json.decode(call.arguments, type=kind)
        except msgspec.ValidationError as error:
            raise ValueError(
                f"bad arguments for {self.name}: {error}. {self._usage()}"
            ) from None
        except msgspec.DecodeError:
            raise ValueError(
                f"the arguments for {self.name} are not whole JSON. {self._usage()}"
            ) from None
        except Exception as error:
            raise ValueError(
                f"bad arguments for {self.name}: {type(error).__name__}."
            ) from error
        if self.schema is not None:
            return {"arguments": read}
        return {name: getattr(read, name) for name in self.arguments.__struct_fields__}

    def _usage(self) -> str:
        if self.schema is None:
            fields = msgspec.structs.fields(self.arguments)
            known = {f.encode_name: f.required for f in fields}
        else:
            required = self.schema.get("required", ())
            known = {n: n in required for n in self.schema.get("properties", ())}
        takes = ", ".join(
            name if needed else f"{name} (optional)" for name, needed in known.items()
        )
        return f"It takes {takes or 'no arguments'}."

    async def call(
        self, call: ToolCall, arguments: dict[str, Any], seconds: float, attempt: int
    ) -> ToolEnded | ToolLost | ToolNotRun:
        """Run the body for `seconds` at most, and say what became of it.

        A read that timed out and has retries left is lost: it may begin again.

        Never raises but `trio.Cancelled` and what is no Exception. A value that comes
        back after the limit is kept for a write, which is then confirmed, and not
        believed of a read, whose caller was promised an answer in time.
        """
        code, problem = "timeout", f"no result within {seconds:g} s"
        with trio.CancelScope(deadline=trio.current_time() + seconds) as limit:
            try:
                value = await self.fn(**arguments)
                if not limit.cancel_called or self.effect is not Effect.READ:
                    return self._returned(call, value, late=limit.cancel_called)
            except SubAgentLeft as error:
                lost = ToolLost if error.acted else ToolNotRun
                return lost(call=call, problem=str(error), code=error.code)
            except Exception as error:  # noqa: BLE001 - a tool may raise anything
                cause = _only(error)
                problem = clean(str(cause)) or type(cause).__name__
                code = "tool_error"
                if isinstance(cause, ToolError):
                    fatal = "fatal" if cause.fatal else code
                    return ToolEnded(
                        call=call, content=problem, failed=True, code=fatal
                    )
                problem = f"{type(cause).__name__}: {problem}"
            except BaseExceptionGroup as error:
                raise cancels_of(error) from None
        retry = code == "timeout" and attempt <= self.retries
        if self.effect is Effect.READ and not retry:
            told = f"{self.name} failed: {problem}"
            return ToolEnded(call=call, content=told, failed=True, code=code)
        return ToolLost(call=call, problem=f"{self.name}: {problem}", code=code)

    def _returned(self, call: ToolCall, value: Any, *, late: bool) -> ToolEnded:
        writes = self.effect is not Effect.READ
        status = EffectStatus.CONFIRMED if writes else EffectStatus.NONE
        failed = False
        try:
            content = as_content(value)
        except Exception as error:  # noqa: BLE001 - a value may be anything
            # The effect has happened all the same; only the result cannot be shown.
            content, failed = (
                f"done, but its result cannot be shown: {error}",
                not writes,
            )
        return ToolEnded(
            call=call, content=content, failed=failed, effect_status=status, late=late
        )


def as_content(value: Any) -> str:
    """A result as the model is told it; raises what msgspec raises."""
    return clean(
        value if isinstance(value, str) else msgspec.json.encode(value).decode()
    )


def _only(error: Exception) -> BaseException:
    """The one error in a group of one, as a tool's own nursery raises it."""
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner


class ToolOptions(TypedDict, total=False):
    """What `tool` takes besides the function."""

    name: str | None
    effect: Effect | str
    seconds: float | None
    grace_seconds: float | None
    needs_seconds: float
    fallback: Tool | None
    retries: int
    reconcile: Reconcile | None
    compensate: Callable[[ToolCall, str], Any] | None
    approve: Approve | None
    threads: str
    sequential: bool
    most_calls: int | None
    isolate: str | None


@overload
def tool(fn: Callable[..., Any], /, **options: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool from a function: its hints and docstring become what a model reads.

    `async def` runs in the run's own task. A plain `def` runs in a thread, which nobody
    can stop: `threads="wait"` waits for it and keeps its result, `"cooperative"` ends
    it where it calls `trioagent.check()`, and `"abandon"`, for reads only, leaves it
    behind: the outcome names it while it is alive.

    Args:
        fn: the function. A parameter annotated `ToolContext` gets one.
        options: `name`: the function's own by default. `effect`: "read" (may be
            repeated at will), "keyed" (with the same idempotency key) or "once"
            (never; the default, for what is not known to be harmless is not).
            `seconds`: how long a call may take. `grace_seconds`: how long it may go on
            after a stop. `needs_seconds`: not started when less is left; then
            `fallback`, another tool with the same arguments, runs instead. `retries`:
            how often a read that got no result in time is begun again.
            `reconcile(call, key)`: looks up whether an effect that was cut happened,
            by its idempotency key; returns `Happened(result)`, `DidNotHappen()` or
            `Unknown()`. `compensate(call, key)`: undoes whatever happened of it; it is
            called once at most, and the run ends.
            `approve(call)`: says whether a call may begin; "ask" lets a person say so,
            while the run is paused. `sequential`: the call runs alone, in its place
            among the calls of its turn. `most_calls`: how many may begin in one run.
            `isolate="process"`: it runs in a worker process, which finds it by module
            and name; after the grace of a stop it is ended within 0.2 s, with all that
            it started, whatever it does.

    Raises:
        TypeError: where a model could not fill a parameter, or an option is unknown.
        ValueError: where an option is out of bounds.
    """
    make = partial(_make_tool, **options)
    return make if fn is None else make(fn=fn)


def _make_tool(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    effect: Effect | str = Effect.ONCE,
    needs_seconds: float = 0.0,
    threads: str = "wait",
    isolate: str | None = None,
    **options: Any,
) -> Tool:
    from docstring_parser import parse  # slow to import, needed where tools are made

    name = name or str(getattr(fn, "__name__", type(fn).__name__))
    if not inspect.isroutine(fn):
        raise TypeError(f"@tool takes a function, not {fn!r}")
    inner = inspect.unwrap(fn)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise TypeError(f"@tool {name}: a generator returns nothing to show a model")
    in_thread = not (isolate or inspect.iscoroutinefunction(inner))
    _check_threads(name, threads, effect, in_thread=in_thread)
    doc = parse(inspect.getdoc(fn) or "")
    told = {param.arg_name: param.description or "" for param in doc.params}
    arguments, context = arguments_of(fn, name, told, ToolContext)
    body = _in_thread(fn, name, threads) if in_thread else fn
    if isolate:
        isolated = pkgutil.resolve_name("trioagent.isolate.workers:isolated")
        body, options["needs"] = isolated(fn, name, isolate)
    return Tool(
        name,
        body,
        description="\n\n".join(
            part for part in (doc.short_description, doc.long_description) if part
        ),
        arguments=arguments,
        effect=_effect(name, effect),
        needs_seconds=needs_seconds,
        context=context,
        in_thread=in_thread,
        threads=threads,
        **options,
    )


def check_approve(option: str, approve: Any) -> None:
    """Raise TypeError, naming the option, unless it can be asked."""
    if not (approve is None or approve == "ask" or callable(approve)):
        raise TypeError(f'{option} takes "ask" or a function, not {approve!r}')


def _effect(name: str, effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        raise ValueError(
            f"@tool {name}: effect is read, keyed or once, not {effect!r}"
        ) from None


def _check_threads(name: str, threads: str, effect: Any, *, in_thread: bool) -> None:
    if threads not in {"wait", "cooperative", "abandon"}:
        raise ValueError(
            f"@tool {name}: threads is wait, cooperative or abandon, not {threads!r}"
        )
    if threads != "wait" and not in_thread:
        raise ValueError(f"@tool {name}: threads={threads!r} is for plain functions")
    if threads == "abandon" and effect != Effect.READ:
        raise ValueError(
            f"@tool {name}: a write cannot be abandoned, for nobody would know what it"
            " did: threads='wait', or isolate='process' to end it"
        )


def _in_thread(
    fn: Callable[..., Any], name: str, threads: str
) -> Callable[..., Awaitable[Any]]:
    async def call_it(*args: Any, **kwargs: Any) -> Any:
        body = partial(fn, *args, **kwargs)
        return await call_in_thread(name, body, abandon=threads == "abandon")

    return call_it
