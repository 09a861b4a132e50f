"""Starts the real server, of which the environment variable SPILLGATE_BIN has the path."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

CONFORMANCE = Path(os.environ.get("SPILLGATE_CONFORMANCE", Path(__file__).resolve().parents[2] / "conformance"))
TOKEN = "0123456789abcdef0123456789abcdef"


class Server:
    """A server on a free port, on memory or on a Redis of its own."""

    def __init__(self, policy: str, *, redis: bool = False, token: str | None = TOKEN) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="spillgate-")
        folder = Path(self._folder.name)
        (folder / "limits.toml").write_text(policy)
        arguments = ["serve", "--config", str(folder / "limits.toml"), "--http", "127.0.0.1:0"]
        # The server takes SPILLGATE_ variables for settings.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPILLGATE_")}
        environment |= {f"SPILLGATE_SERVER__{name}": "off" for name in ("GRPC__ADDRESS", "RESP__ADDRESS", "ADMIN")}
        # A machine that is busy with something else is no outage of the store.
        environment["SPILLGATE_STORE__TIMEOUT"] = "10s"
        if token is not None:
            (folder / "token").write_text(token)
            environment["SPILLGATE_SERVER__DATA_TOKEN_FILE"] = str(folder / "token")
        self._redis: subprocess.Popen[bytes] | None = None
        if redis:
            socket = folder / "redis.sock"
            self._redis = subprocess.Popen(
                ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)],
                stdout=subprocess.DEVNULL,
            )
            _wait_for(socket.exists, "redis-server does not start")
            arguments += ["--redis", f"unix://{socket}"]
        log = folder / "log"
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [os.environ["SPILLGATE_BIN"], *arguments], stderr=output, env=environment, stdin=subprocess.DEVNULL
            )

        def port() -> int | None:
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended: {log.read_text()}")
            found = re.search(r"HTTP on http:[^,]*:(\d+)", log.read_text())
            return int(found[1]) if found else None

        try:
            _wait_for(port, lambda: f"the server does not start: {log.read_text()}")
        except AssertionError:
            self.close()
            raise
        self.url = f"http://127.0.0.1:{port()}"

    def hang(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        # Its threads stop a moment later.
        time.sleep(0.1)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.stop()
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()
        self._folder.cleanup()


def has_redis() -> bool:
    return shutil.which("redis-server") is not None


def _wait_for(condition, problem) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(problem() if callable(problem) else problem)
        time.sleep(0.02)
