"""The child process of `LocalModel`: llama.cpp's server, tied to its owner's life.

Run by its path, not as a module, so that it loads nothing but xllamacpp. It writes
one line of JSON on stdout, `{"address": …}` or `{"error": …}`, and ends at the end of
stdin: the owner's end of that pipe closes however the owner ends, by `kill -9` too.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from typing import Any


def end_with_owner() -> None:
    """Wait for the end of stdin, then end this process without asking anyone."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def start_server(config: dict[str, Any]) -> Any:
    """Load the model and listen, or raise RuntimeError. Takes seconds."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = config["path"]
    params.model_alias = {config["name"]}  # else replies name the whole path
    params.n_ctx = config["context_tokens"]
    params.n_parallel = config["parallel"]
    params.kv_unified = True  # one answer may use what the others leave
    params.ui = False
    params.cors_origins = params.hostnames[0]  # no web page may ask it
    params.verbosity = 1  # errors: nobody empties the log
    if config["threads"] is not None:
        params.cpuparams.n_threads = config["threads"]
        params.cpuparams_batch.n_threads = config["threads"]
    return xllamacpp.Server(params)


def main() -> None:
    """Serve until stdin ends."""
    config = json.loads(sys.argv[1])
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the report is all that may reach stdout
    threading.Thread(target=end_with_owner, daemon=True).start()
    # Loading holds the interpreter lock, so the thread above cannot run until it is
    # over. This bound is kept by a thread that needs no lock.
    faulthandler.dump_traceback_later(config["start_seconds"], exit=True)
    try:
        server = start_server(config)
    except RuntimeError as error:
        report.write(json.dumps({"error": str(error)}) + "\n")
        report.close()
        raise SystemExit(1) from None
    faulthandler.cancel_dump_traceback_later()
    report.write(json.dumps({"address": server.listening_address}) + "\n")
    report.close()
    threading.Event().wait()  # `server` lives as long as this frame


if __name__ == "__main__":
    main()
