"""The time until a request has its connection: bounded, and watched.

httpcore says at each stage of a request what it does; here someone listens.
"""

from __future__ import annotations

import math
import socket
from contextlib import suppress
from typing import Any

import trio

from trioagent._errors import ModelTimeout

# The kernel looks after long silences: middle boxes drop connections that are quiet.
_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 60))
        if hasattr(socket, name)
    ),
]


class ConnectClock:
    """Runs from now until the request is on its way, and not a moment longer."""

    def __init__(self, host: str, seconds: float) -> None:
        self.host = host
        self.seconds = seconds
        self.scope = trio.CancelScope(deadline=trio.current_time() + seconds)
        # A new connection that nobody would close yet if the request ended here.
        self.stray: Any = None

    def timeout(self, what: str) -> ModelTimeout:
        """The error for when it ran out."""
        return ModelTimeout(
            f"{what} after {self.seconds:g} s (Limits.connect_seconds)",
            scope="connect",
            kind="connect_timeout",
            billed="known",
        )

    # A callback: the awaits of httpcore are around it.
    async def trace(self, name: str, info: dict[str, Any]) -> None:  # noqa: ASYNC910
        """For httpcore to call at each stage of the request."""
        if name.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.stray = info["return_value"]
            _keep_alive(self.stray.get_extra_info("socket"))
            # Next httpcore takes a lock; cancelled there, it would keep the connection
            # for ever. Cancelled here, it takes it for one that failed.
            await trio.lowlevel.checkpoint_if_cancelled()
        elif name.endswith("send_request_headers.started"):
            self.stray = None  # from here on httpcore closes it
            if info["request"].method != b"CONNECT":  # that one is for the proxy
                self.scope.deadline = math.inf


def _keep_alive(sock: trio.socket.SocketType) -> None:
    with suppress(OSError):  # not every system has them, and nothing depends on them
        for option in _KEEP_ALIVE:
            sock.setsockopt(*option)
