"""A bank that charges and never answers: `python -m examples.uncertain_payment`.

The bank is a server on loopback. Three agents pay there and are cut in the middle: one
whose tool has an idempotency key, one that can look the charge up, and one that can do
neither. Then each run is resumed from its journal, as a new process would after a
crash. The bank's ledger has one charge for each, and the third waits for a person.
"""

import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import trio

from trioagent import (
    Agent,
    DidNotHappen,
    Happened,
    Limits,
    ModelRequest,
    ToolCall,
    ToolContext,
    tool,
)
from trioagent.stores.sqlite import SqliteStore
from trioagent.testing import ScriptedModel, call

LEDGER: list[str] = []  # the bank's: a line for each charge


class Bank(BaseHTTPRequestHandler):
    """Charges once for a key. Its first answer for each is never sent."""

    def do_POST(self) -> None:
        key = parse_qs(urlsplit(self.path).query)["key"][0]
        known = key in LEDGER
        if not known:
            LEDGER.append(key)
            self.rfile.read(1)  # until the client goes away
        else:
            self.answer("charged")

    def do_GET(self) -> None:
        self.answer(f"{LEDGER.count(self.path.removeprefix('/charges/'))}")

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        pass


def open_bank() -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bank)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def make_agent(bank: str, store: SqliteStore, name: str, **options: Any) -> Agent:
    @tool(grace_seconds=0.1, **options)
    async def pay(cents: int, ctx: ToolContext) -> str:
        """Charge the card."""
        async with httpx.AsyncClient(timeout=None) as client:
            key = {"key": ctx.idempotency_key}
            return (await client.post(f"{bank}/charge", params=key)).text

    def model(request: ModelRequest) -> Any:  # it stands in for a real one
        return [call("pay", cents=900), "It is paid."][request.turn - 1]

    return Agent(ScriptedModel([model] * 4), name=name, tools=[pay], store=store)


async def main() -> None:
    bank = open_bank()

    async def look_up(_: ToolCall, key: str) -> Happened | DidNotHappen:
        async with httpx.AsyncClient() as client:
            count = (await client.get(f"{bank}/charges/{key}")).text
        return DidNotHappen() if count == "0" else Happened("charged")

    ways: dict[str, dict[str, Any]] = {
        "keyed": {"effect": "keyed"},
        "looked up": {"effect": "once", "reconcile": look_up},
        "neither": {"effect": "once"},
    }
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteStore(Path(folder) / "journal.db") as store:
            for name, options in ways.items():
                agent = make_agent(bank, store, name, **options)
                cut = await agent.run("Pay the 9 euros", limits=Limits(seconds=1))
                print(f"{name}: {cut.status}, uncertain: {len(cut.uncertain)}")
                done = await agent.resume(cut.run_id, limits=Limits(seconds=60))
                answer = done.output or f"it waits for a person ({done.stop_reason})"
                print(f"  resumed: {done.status}, {answer}")
    print(f"charges in the bank's ledger: {len(LEDGER)}, keys: {len(set(LEDGER))}")
    assert len(LEDGER) == len(set(LEDGER)) == len(ways)


if __name__ == "__main__":
    trio.run(main)
