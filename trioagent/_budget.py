"""What a run may still spend: its own limits, and those of the runs it works for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import trio

from ._ending import logger
from ._errors import StoreError, ToolError
from ._events import (
    ChildSpent,
    ModelCut,
    ModelReplied,
    RunEnded,
    Status,
    Stop,
    ToolCall,
    Usage,
)
from ._limits import Price, needs_price, output_cap, passed, used_up
from ._ports import Model

if TYPE_CHECKING:  # a run has one
    from ._run import Run


class WorksOn(NamedTuple):
    """The call of another run that a run works on."""

    run: Run
    call: ToolCall

    def __str__(self) -> str:
        return f"{self.run.id}:{self.call.turn}.{self.call.position}"


class Budget:
    """One ledger for a tree of runs: what a child spends, its ancestors have spent.

    Each run counts what its descendants have used as its own, so its limits hold for
    all of them together. What a request may use at most is reserved while it is out,
    and what is left is shared among those who have none out: children that run side by
    side cannot pass a limit together.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.cap: int | None = None  # of the request that is out, or was last
        self.running: dict[str, Usage] = {}  # of requests that are out, by run
        self.reserved: dict[str, int] = {}  # tokens, likewise
        self.changed = trio.Event()  # something that was reserved is free

    def _levels(self) -> Iterator[Run]:
        run: Run | None = self._run
        while run:
            yield run
            run = run.parent

    @property
    def price(self) -> Price | None:
        """The prices this run knows, or who it works for."""
        known = (run.plan.price for run in self._levels() if run.plan.price)
        return next(known, None)

    async def reserve(self, model: Model) -> None:
        """Find out how many tokens the next reply may have, and reserve them.

        Where others have reserved all that is left it waits for the first of them.
        """
        while (full := self._look(model)) is not None:
            await full.changed.wait()
        if end := self.reason_to_end():  # others have used it up
            self._run.ending.stop_now(end.status, end.stop or Stop("parent"))
            await trio.lowlevel.checkpoint()
        if self.cap is not None:
            for level in self._levels():
                level.budget.reserved[self._run.id] = self.cap

    def _look(self, model: Model) -> Budget | None:
        """Set the cap by what each level has left; a level where others have it all."""
        self.cap = None
        for level in self._levels():
            conditions, spent = level.plan.conditions, level.state.usage
            left = output_cap(conditions, spent, self.price, model.name)
            if left is None:
                continue
            held = level.budget.reserved
            left -= sum(held.values())
            if held and left < 1:
                return level.budget
            share = max(1, left // max(1, _workers(level) - len(held)))
            self.cap = share if self.cap is None else min(self.cap, share)
        return None

    def release(self) -> None:
        """The request is over, or was never made."""
        if self.cap is None and not self.running:
            return
        for level in self._levels():
            level.budget.running.pop(self._run.id, None)
            level.budget.reserved.pop(self._run.id, None)
            level.budget.changed.set()
            level.budget.changed = trio.Event()

    def reached_cap(self, usage: Usage) -> bool:
        """Whether a reply has used all that it might."""
        return bool(self.cap and (usage.output_tokens or 0) >= self.cap)

    def watch(self, model: Model, running: Usage) -> None:
        """Cut a reply whose running usage has passed a token or cost limit."""
        running = self.priced(model, running)
        for level in self._levels():
            level.budget.running[self._run.id] = running
            spent = sum(level.budget.running.values(), level.state.usage)
            limit = passed(level.plan.conditions, spent)
            if limit and not self._run.ending.cause:
                self._run.ending.stop_now(Status.STOPPED, limit.stop())

    async def settle(self, event: ModelReplied | ModelCut) -> None:
        """A request is over: its ancestors have spent what it used."""
        replied = isinstance(event, ModelReplied)
        usage = event.reply.usage if isinstance(event, ModelReplied) else event.usage
        billed = "unknown" if usage.total_tokens is None else "known"
        child = self._run
        for level in self._levels():
            if level is not self._run and child.works_on:
                spent = ChildSpent(
                    call=child.works_on.call,
                    run_id=self._run.id,
                    usage=usage,
                    billed=billed if isinstance(event, ModelReplied) else event.billed,
                    turns=int(replied),
                )
                try:
                    await level.record(spent)
                except StoreError as error:  # of the level's journal, not of this run
                    level.broken = error
            child = level
        self.release()

    def reason_to_end(self) -> RunEnded | None:
        """Why an ancestor has nothing left for this run to spend."""
        for level in self._levels():
            if level is not self._run:
                conditions = level.plan.conditions
                if end := used_up(level.state, level.limits, conditions):
                    return end
        return None

    def check_prices(self, price: Price | None, model: str | Model) -> None:
        """Raise ToolError where a cost limit of this run could not be kept for it."""
        nothing = Usage(input_tokens=0, output_tokens=0)
        name = model if isinstance(model, str) else model.name
        armed = any(needs_price(level.plan.conditions) for level in self._levels())
        if armed and (price is None or price(name, nothing) is None):
            raise ToolError(f"max_cost cannot be kept: no price is known for {name}")

    def priced(self, model: Model, usage: Usage) -> Usage:
        """The usage with its cost, where a price is known."""
        if usage.cost is not None or (price := self.price) is None:
            return usage
        try:
            cost = price(model.name, usage)
        except Exception:  # noqa: BLE001 - a function of the user's
            # What was paid for is not lost over it; it only stays without a price.
            logger.exception("price() failed for %s", model.name)
            return usage
        return msgspec.structs.replace(usage, cost=cost)


def _workers(run: Run) -> int:
    """How many sub-agents are at work for a run, or will be in this turn."""
    turn = run.state.turns[-1] if run.state.turns else None
    calls = [c for c in turn.tool_calls if c.position not in turn.ends] if turn else []
    tools = (run.tools.get(call.name) for call in calls)
    return sum(bool(tool and tool.sub_agent) for tool in tools)
