"""A small stand-in for an MCP server on stdio that plays one fault.

python mcp_fake.py MODE [LOG]

    ok            answers
    dies          ends in the middle of a call, with exit code 3
    junk          writes to stdout what is no message
    stderr_flood  writes a million bytes to stderr in a call
    deaf          ignores TERM and the end of its stdin, and so does a child of it
    progress      reports progress for ever
    late          answers a call once it is cancelled
    never_init    never answers the first question
    stuck         stops reading in a call
    big           answers with five million bytes
    modern        knows the protocol of 2026 only
    refuses       answers the first question with an error
    slow_exit     ignores the end of its stdin
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

MODE = sys.argv[1]
LOG = sys.argv[2] if sys.argv[2:] else os.devnull


def note(line: str) -> None:
    with open(LOG, "a") as log:
        log.write(line + "\n")


CACHE = {"ttlMs": 0, "cacheScope": "public", "resultType": "complete"}


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def say_junk(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "resultType": "complete"}


def initialize(number: Any, params: dict[str, Any]) -> None:
    if MODE == "junk":
        say_junk("server 1.0 ready\n\n")
    if MODE == "modern":
        data = {"supported": ["2026-07-28"], "requested": params["protocolVersion"]}
        say(id=number, error={"code": -32022, "message": "too old", "data": data})
    elif MODE == "refuses":
        say(id=number, error={"code": -32603, "message": "no licence"})
    elif MODE != "never_init":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "fake", "version": "0"},
        }
        say(id=number, result=result)


def work(number: Any, params: dict[str, Any]) -> None:
    match MODE:
        case "dies":
            os._exit(3)
        case "junk":
            say_junk("DEBUG calling\n")
        case "stderr_flood":
            sys.stderr.write("x" * 1_000_000 + "\n")
            sys.stderr.flush()
        case "stuck":
            time.sleep(300)  # noqa: TID251 - a program of its own
        case "progress":
            report(params["_meta"]["progressToken"])
        case _:
            pass
    if MODE not in ("late", "deaf"):
        text = "y" * 5_000_000 if MODE == "big" else "done"
        say(id=number, result=text_result(text))


def report(token: Any) -> None:
    progress = 0
    while True:
        progress += 1
        params = {"progressToken": token, "progress": progress}
        say(method="notifications/progress", params=params)
        time.sleep(0.05)  # noqa: TID251 - a program of its own


def main() -> None:
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "300"])  # it holds our stdout
    note(f"pid {os.getpid()}")
    for line in sys.stdin:
        message = json.loads(line)
        number, params = message.get("id"), message.get("params", {})
        note(f"got {message.get('method')} {number}")
        match message.get("method"):
            case "initialize":
                initialize(number, params)
            case "server/discover" if MODE == "modern":
                found = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
                say(id=number, result={**found, **CACHE})
            case "tools/list":
                tool = {"name": "work", "inputSchema": {"type": "object"}}
                say(id=number, result={"tools": [tool], **CACHE})
            case "tools/call":
                work(number, params)
            case "notifications/cancelled":
                note(f"cancelled {params['requestId']}")
                if MODE == "late":
                    say(id=params["requestId"], result=text_result("too late"))
            case _:
                pass
    if MODE in ("deaf", "slow_exit"):
        time.sleep(300)  # noqa: TID251 - a program of its own


main()
