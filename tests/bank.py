"""A bank in a process of its own: it commits a charge and withholds its answer.

`python -m tests.bank` prints its URL. `POST /charge?key=…&keyed=…` charges; a keyed
charge is made once for its key, any other each time. The first answer for a key is
never sent, later ones are. `GET /charges?key=…` lists the charges, of a key or all;
with `least=N` it answers once there are so many.
"""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

CHARGES: list[str] = []
ASKED: set[str] = set()
CHANGED = threading.Condition()
PATIENCE_SECONDS = 60  # of a handler whose client never leaves


class Desk(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        key, keyed = asked["key"][0], asked.get("keyed") == ["1"]
        with CHANGED:
            if not (keyed and key in CHARGES):
                CHARGES.append(key)
            first = key not in ASKED
            ASKED.add(key)
            CHANGED.notify_all()
        if first:
            self.connection.settimeout(PATIENCE_SECONDS)
            self.rfile.read(1)  # until the client goes
        else:
            self._answer("charged")

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        least = int(asked.get("least", ["0"])[0])
        with CHANGED:
            CHANGED.wait_for(lambda: len(CHARGES) >= least, PATIENCE_SECONDS)
            found = [k for k in CHARGES if "key" not in asked or [k] == asked["key"]]
        self._answer("\n".join(found))

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None:
        """Be quiet."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Desk)
    server.daemon_threads = True
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # whoever started it has gone


if __name__ == "__main__":
    main()
