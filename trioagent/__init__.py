"""AI agents that stop when they are told to, and say what they may already have done.

The files, from the bottom up; imports go up this list only:

    words     no I/O, no trio
      _events     what can happen: Event and its Structs; ToolCall, Reply, Stop, Status
      _errors     every exception; the tree is drawn in its docstring
      _turn       one round: what is certain about each call, what the model is told
      _phase      where a run stands, and what may come next: TRANSITIONS
      _state      what is known of a run: RunState, a fold over its events
      _outcome    how a run ended, what is certain about it, whether it can go on
      _limits     what a run may spend: Limits, the stop conditions
    ports     what a run needs
      _ports      the Model and Store protocols
      _foreign    how functions of the user's are called: in threads, with clean texts
      _schema     a signature becomes a Struct, a type becomes a JSON Schema
      _tools      Tool, @tool
    engine    trio
      _plan       what a run is made from: the agent's description and the call's
      _scopes     all we add to trio: grace periods, a nursery without groups
      _ending     why a run ends, and the cleanup report
      _reply      one reply of the model under its clocks
      _attempts   asking until there is a reply: retries, fallbacks, the breaker
      _effects    what an interrupted write needs: decide(), reconcile, compensate
      _calls      one tool call, from what was asked to what became of it
      _approvals  who has to say yes before a call begins
      _guards     who looks at what goes in and comes out
      _budget     what a run may still spend, with those it works for
      _run        the loop (first in the file, whole), Run
      _subagents  agents that work for an agent, as its tool or by taking over
      _agent      Agent: run, run_sync, open, resume
    adapters  know words and ports, never the engine, never each other
      models      openai_chat, openai_responses, anthropic, gemini, local; _policy
      stores      memory, sqlite
      isolate     tools in killable processes: python workers, shell; the warden
      mcp         MCP servers as tools, through the official package
      prices      genai_price, by the tables of genai-prices
      observe     console, story and tree (rich), log (JSON lines), watchdog
      testing     ScriptedModel, BlockingModel, check_model, check_store, the sweep
    faces     know everything
      bench       how runs stop, measured: drivers, adapters, tables, reports
      cli         trioagent run, runs, demo and bench
"""

from ._agent import Agent
from ._errors import (
    AgentError,
    ImpossibleEvent,
    ModelAborted,
    ModelError,
    ModelRefused,
    ModelTimeout,
    ModelUnavailable,
    RunNotCompleted,
    StoreError,
    ToolError,
)
from ._events import (
    AnyEvent,
    ApprovalAsked,
    ApprovalGiven,
    Child,
    ChildSpent,
    CleanupOverrun,
    CompensationStarted,
    Effect,
    EffectJudged,
    EffectStatus,
    Event,
    FromChild,
    HandedOff,
    KeepAlive,
    KeptEvent,
    Message,
    ModelAsked,
    ModelCut,
    ModelReplied,
    ReasoningDelta,
    Reply,
    ReplyOpened,
    ReplyPart,
    RunEnded,
    RunResumed,
    RunStarted,
    Status,
    Stop,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolEnded,
    ToolLost,
    ToolNotRun,
    ToolOutput,
    ToolResult,
    ToolStarted,
    Usage,
    UsageReported,
    UserMessage,
    Verdict,
)
from ._foreign import check
from ._limits import (
    Limits,
    Price,
    StopCondition,
    finish_reason_is,
    has_tool_call,
    max_cost,
    max_duration,
    max_tokens_used,
    step_count_is,
)
from ._outcome import Outcome, ResumeDecision, ToolReport
from ._phase import Phase
from ._ports import (
    Again,
    Approve,
    Breaker,
    Denied,
    DidNotHappen,
    Failure,
    Finding,
    Guard,
    Happened,
    Model,
    ModelRequest,
    Observer,
    OnUncertain,
    OutputSpec,
    Reconcile,
    Retry,
    Store,
    ToolSpec,
    Unknown,
)
from ._run import Run, RunHandle
from ._state import RunState
from ._tools import Tool, ToolContext, Toolset, tool
from ._turn import Turn
from .models._policy import CircuitBreaker, retries

__all__ = [
    "Again",
    "Agent",
    "AgentError",
    "AnyEvent",
    "ApprovalAsked",
    "ApprovalGiven",
    "Approve",
    "Breaker",
    "Child",
    "ChildSpent",
    "CircuitBreaker",
    "CleanupOverrun",
    "CompensationStarted",
    "Denied",
    "DidNotHappen",
    "Effect",
    "EffectJudged",
    "EffectStatus",
    "Event",
    "Failure",
    "Finding",
    "FromChild",
    "Guard",
    "HandedOff",
    "Happened",
    "ImpossibleEvent",
    "KeepAlive",
    "KeptEvent",
    "Limits",
    "Message",
    "Model",
    "ModelAborted",
    "ModelAsked",
    "ModelCut",
    "ModelError",
    "ModelRefused",
    "ModelReplied",
    "ModelRequest",
    "ModelTimeout",
    "ModelUnavailable",
    "Observer",
    "OnUncertain",
    "Outcome",
    "OutputSpec",
    "Phase",
    "Price",
    "ReasoningDelta",
    "Reconcile",
    "Reply",
    "ReplyOpened",
    "ReplyPart",
    "ResumeDecision",
    "Retry",
    "Run",
    "RunEnded",
    "RunHandle",
    "RunNotCompleted",
    "RunResumed",
    "RunStarted",
    "RunState",
    "Status",
    "Stop",
    "StopCondition",
    "Store",
    "StoreError",
    "TextDelta",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "ToolContext",
    "ToolEnded",
    "ToolError",
    "ToolLost",
    "ToolNotRun",
    "ToolOutput",
    "ToolReport",
    "ToolResult",
    "ToolSpec",
    "ToolStarted",
    "Toolset",
    "Turn",
    "Unknown",
    "Usage",
    "UsageReported",
    "UserMessage",
    "Verdict",
    "check",
    "finish_reason_is",
    "has_tool_call",
    "max_cost",
    "max_duration",
    "max_tokens_used",
    "retries",
    "step_count_is",
    "tool",
]
