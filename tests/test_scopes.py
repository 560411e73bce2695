"""What trioagent adds to trio."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from trioagent import Limits, Status
from trioagent._ending import Ending
from trioagent._foreign import only_cancels
from trioagent._scopes import GracePeriods, end_if_cancelled, open_flat_nursery


async def nothing() -> None:
    await trio.sleep_forever()


async def test_work_in_a_shield_is_cut_when_its_grace_is_over(
    autojump_clock: MockClock,
) -> None:
    done: list[str] = []
    noted: list[float] = []
    graces = GracePeriods(lambda: noted.append(trio.current_time()))
    with trio.move_on_after(1) as enclosing:
        async with graces.watch(nothing):
            with graces.shield(5):
                await trio.sleep(3)
                done.append("inside")
            with graces.shield(5):
                await trio.sleep(4)
                done.append("from now on")
            with graces.shield(2) as cut:
                await trio.sleep(3)
                done.append("too long")
            assert cut.cancelled_caught
            await trio.lowlevel.checkpoint()
            done.append("after")
    assert done == ["inside", "from now on"]
    assert enclosing.cancelled_caught
    assert noted == [1]
    assert trio.current_time() == 3 + 4 + 2


async def test_without_a_cancel_a_shield_has_no_end(autojump_clock: MockClock) -> None:
    graces = GracePeriods(lambda: pytest.fail("there was no cancel"))
    async with graces.watch(nothing):
        with graces.shield(1):
            await trio.sleep(100)
    assert trio.current_time() == 100


async def test_outside_the_watch_a_shield_is_bounded_at_once(
    autojump_clock: MockClock,
) -> None:
    with GracePeriods(lambda: None).shield(2) as scope:
        await trio.sleep(600)
    assert scope.cancelled_caught
    assert trio.current_time() == 2


async def test_a_deadline_that_has_just_passed_counts_at_once() -> None:
    went_on = False
    with trio.CancelScope() as scope:
        scope.deadline = trio.current_time()
        await trio.lowlevel.checkpoint_if_cancelled()  # trio has not noticed
        await end_if_cancelled()
        went_on = True
    assert not went_on
    await end_if_cancelled()


async def fail(error: BaseException) -> None:
    raise error


async def test_one_error_leaves_as_itself() -> None:
    with pytest.raises(KeyError) as info:
        async with open_flat_nursery() as nursery:
            nursery.start_soon(fail, KeyError("one"))
            await trio.sleep_forever()
    assert info.value.__suppress_context__, "the group does not show"


async def test_of_two_errors_one_leaves_and_names_the_other() -> None:
    with pytest.raises((KeyError, ValueError)) as info:
        async with open_flat_nursery() as nursery:
            nursery.start_soon(fail, ValueError("a"))
            nursery.start_soon(fail, KeyError("b"))
    (note,) = info.value.__notes__
    assert ("KeyError" in note) != isinstance(info.value, KeyError)


async def test_ctrl_c_goes_before_errors_however_deep_it_is() -> None:
    with pytest.raises(KeyboardInterrupt):
        async with open_flat_nursery() as nursery:
            inner = BaseExceptionGroup("", [ValueError("b"), KeyboardInterrupt()])
            nursery.start_soon(fail, ValueError("a"))
            nursery.start_soon(fail, inner)


async def test_a_cancel_is_no_error() -> None:
    with trio.CancelScope() as scope:
        async with open_flat_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
    assert scope.cancelled_caught


async def test_of_a_cancel_and_errors_in_its_cleanup_only_the_cancel_goes_on() -> None:
    with trio.CancelScope() as scope:
        with only_cancels():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.lowlevel.checkpoint()
                scope.cancel()
                raise ValueError("in a cleanup")
    assert scope.cancelled_caught


async def test_errors_that_no_cancel_came_with_go_on_as_they_are() -> None:
    group = BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError()])
    with pytest.RaisesGroup(KeyboardInterrupt, ValueError) as info, only_cancels():
        raise group
    assert info.value is group


async def test_a_run_whose_parent_does_not_know_yet_has_the_reason_of_the_root() -> (
    None
):
    root = Ending(Limits(), None)
    leaf = Ending(Limits(), Ending(Limits(), root))
    root.cancel("enough")
    leaf.graces.note_cancel()  # in trio, who sees a cancel first is not settled
    assert leaf.cause is not None
    assert leaf.cause.status is Status.CANCELLED
    assert leaf.cause.stop.detail == "enough"


async def test_who_sees_a_cancel_before_anybody_watches_tells_of_it() -> None:
    ending = Ending(Limits(), None)
    with trio.CancelScope() as scope:
        scope.cancel()
        with ending.child("work"):
            await trio.sleep_forever()
    assert ending.graces.cancelled_at is not None
    first = ending.graces.cancelled_at
    await trio.sleep(0.001)
    ending.graces.note_cancel()
    assert ending.graces.cancelled_at == first, "the first time counts"
