"""What may happen next, and what is known after it; without trio."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from trioagent import (
    Effect,
    EffectStatus,
    ImpossibleEvent,
    KeptEvent,
    ModelAsked,
    ModelCut,
    ModelReplied,
    Outcome,
    Reply,
    RunEnded,
    RunStarted,
    RunState,
    Status,
    Stop,
    ToolCall,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolResult,
    ToolStarted,
    Usage,
    UserMessage,
)
from trioagent._phase import TRANSITIONS, Phase
from trioagent._turn import check_history

STARTED = RunStarted(run_id="r", messages=(UserMessage("go"),))
PAY = ToolCall("pay", id="1", turn=1, position=0)
LOOK = ToolCall("look", id="2", turn=1, position=1)
REPLIED = ModelReplied(Reply(tool_calls=(PAY, LOOK), finish_reason="tool_calls"))
ASKED: list[KeptEvent] = [STARTED, ModelAsked(1)]
CALLING: list[KeptEvent] = [*ASKED, REPLIED]
END = RunEnded(Status.INTERRUPTED)


@pytest.mark.parametrize(
    ("before", "event", "message"),
    [
        ([], END, "RunEnded in phase NEW"),
        ([STARTED], STARTED, "RunStarted in phase READY"),
        ([STARTED], REPLIED, "ModelReplied in phase READY"),
        ([STARTED], ModelAsked(2), "turn 2 after 0"),
        (CALLING, REPLIED, "ModelReplied in phase CALLING"),
        (CALLING, ToolEnded(call=PAY, content=""), "ended out of turn"),
        (CALLING, ToolStarted(ToolCall("x", turn=9), Effect.READ), r"no call x"),
        (CALLING, ToolStarted(ToolCall("x", turn=1), Effect.READ), r"no call x"),
        ([*CALLING, ToolStarted(PAY, Effect.ONCE)], ToolStarted(PAY, Effect.ONCE), "t"),
        ([*CALLING, END], END, "RunEnded in phase ENDED"),
    ],
)
def test_events_out_of_order_are_refused_and_change_nothing(
    before: list[KeptEvent], event: KeptEvent, message: str
) -> None:
    state = RunState.replay(before)
    phase, messages = state.phase, list(state.messages)
    with pytest.raises(ImpossibleEvent, match=message):
        state.apply(event)
    assert (state.phase, state.messages) == (phase, messages)


def test_an_effect_is_uncertain_from_its_start_to_its_end() -> None:
    state = RunState.replay(CALLING)
    assert list(state.uncertain) == []
    state.apply(ToolStarted(PAY, Effect.ONCE))
    state.apply(ToolStarted(LOOK, Effect.READ))
    assert list(state.uncertain) == [PAY]
    state.apply(ToolLost(call=PAY, problem="no answer"))
    assert list(state.uncertain) == [PAY]
    state.apply(ToolEnded(call=LOOK, content="seen"))
    assert state.turns[0].effect_status(LOOK) is EffectStatus.NONE


def test_a_confirmed_effect_is_not_uncertain() -> None:
    done = ToolEnded(call=PAY, content="ok", effect_status=EffectStatus.CONFIRMED)
    state = RunState.replay([*CALLING, ToolStarted(PAY, Effect.KEYED), done])
    assert state.uncertain == ()
    assert state.turns[0].effect_status(PAY) is EffectStatus.CONFIRMED


def test_a_started_call_that_did_not_run_is_not_uncertain() -> None:
    not_run = ToolNotRun(call=PAY, problem="stopped", code="stopped")
    state = RunState.replay([*CALLING, ToolStarted(PAY, Effect.ONCE), not_run])
    assert state.uncertain == ()
    assert state.turns[0].effect_status(PAY) is EffectStatus.NOT_STARTED


def test_each_call_has_one_result_whatever_became_of_it() -> None:
    # Promise 7: what each provider accepts is one result a call, in their order.
    state = RunState.replay([*CALLING, ToolStarted(PAY, Effect.ONCE)])
    pay, look = state.history()[2:]
    assert isinstance(pay, ToolResult)
    assert isinstance(look, ToolResult)
    assert (pay.call_id, pay.failed) == ("1", True)
    assert pay.content.startswith("Outcome unknown")
    assert look.content.startswith("Not started")
    state = RunState.replay([*CALLING, ToolStarted(LOOK, Effect.READ)])
    assert state.history()[3].content.startswith("Stopped before")  # type: ignore[union-attr]


def test_a_journal_without_an_end_was_interrupted() -> None:
    outcome = Outcome.of(RunState.replay(ASKED))
    assert (outcome.status, outcome.stop_reason) == (Status.INTERRUPTED, "host")
    assert outcome.billed == "unknown"
    assert Outcome.of(RunState()).run_id == ""


def test_a_cut_request_may_be_asked_again() -> None:
    cut = ModelCut(turn=1, code="llm_timeout", text="par")
    state = RunState.replay([*ASKED, cut])
    assert (state.phase, state.billed) == (Phase.READY, "unknown")
    assert Outcome.of(state).text == "par"
    state.apply(ModelAsked(1))
    assert state.cut is None
    state.apply(ModelReplied(Reply(text="whole")))
    assert state.history()[1:] == (Reply(text="whole"),)


def test_what_is_unknown_is_not_nothing() -> None:
    # Promise 5
    assert Usage().total_tokens is None
    assert Usage(input_tokens=0).total_tokens == 0
    some = Usage(input_tokens=1, cost=0.5) + Usage(input_tokens=2, output_tokens=3)
    assert some == Usage(input_tokens=3, output_tokens=3, cost=0.5)
    assert some.cached_tokens is None
    state = RunState.replay([*ASKED, ModelReplied(Reply(text="hi"))])
    assert state.billed == "unknown"
    assert not state.cost_known


def test_the_state_says_what_conditions_look_at() -> None:
    # Rules 139 to 141
    ended = ToolEnded(call=LOOK, content="broken", failed=True, at=0.5)
    state = RunState.replay([*CALLING, ToolStarted(LOOK, Effect.READ), ended])
    assert (state.step_count, state.finish_reason) == (1, "tool_calls")
    assert [call.name for call in state.tool_calls] == ["pay", "look"]
    assert state.elapsed_ms == 500
    assert [r.failed for t in state.turns for r in t.results] == [True, True]
    assert state.turns[0].finish_reason == "tool_calls"
    assert RunState().finish_reason is None


@pytest.mark.parametrize(
    ("stop", "printed"),
    [
        (Stop("step_count", "12", source="condition"), "step_count:12"),
        (Stop("user", "user_clicked_stop", source="user"), "user"),
        (Stop("refund_requested", source="condition"), "refund_requested"),
        (Stop("deadline", "30 s"), "deadline"),
    ],
)
def test_a_reason_prints_as_one_word(stop: Stop, printed: str) -> None:
    assert str(stop) == printed


def test_events_survive_being_written_and_read() -> None:
    events: list[KeptEvent] = [*CALLING, ToolStarted(PAY, Effect.ONCE, at=1.5), END]
    written = msgspec.json.encode(events)
    assert msgspec.json.decode(written, type=list[KeptEvent]) == events


def test_an_older_program_reads_newer_events() -> None:
    newer = b'{"type":"ModelAsked","turn":1,"at":2.0,"brand_new":[1]}'
    assert msgspec.json.decode(newer, type=KeptEvent) == ModelAsked(1, at=2.0)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([Reply(tool_calls=(PAY,))], "the call 'pay' has no result"),
        ([Reply(tool_calls=(PAY,)), UserMessage("and?")], "'pay' has no result"),
        ([ToolResult("pay", "ok")], "a result of 'pay' without a call"),
        ([Reply(tool_calls=(PAY, LOOK)), ToolResult("look", "")], "without a call"),
    ],
)
def test_a_history_that_no_provider_accepts_is_refused(
    history: list[UserMessage | Reply | ToolResult], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_history(history)


def test_the_readme_draws_the_table_as_it_is() -> None:
    lines = ["stateDiagram-v2", "    [*] --> NEW"]
    for phase, table in TRANSITIONS.items():
        by_target: dict[Phase, list[str]] = {}
        for event, target in table.items():
            by_target.setdefault(target, []).append(event.__name__)
        lines += [
            f"    {phase.name} --> {target.name}: {', '.join(names)}"
            for target, names in by_target.items()
        ]
    lines.append("    ENDED --> [*]")
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert "\n".join(lines) in readme, "\n".join(lines)
