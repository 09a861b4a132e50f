"""Median latency of the middlewares, beside a plain keep-alive POST of the same bytes to the same server.

Usage: SPILLGATE_BIN=PATH PYTHONPATH=src:tests python bench/bench.py [ROUNDS]
"""

from __future__ import annotations

import asyncio
import http.client
import statistics
import sys
import time
from typing import Any

from server import Server
from spillgate import AsyncClient, Client
from spillgate.asgi import RateLimit as AsgiRateLimit
from spillgate.wsgi import RateLimit as WsgiRateLimit

POLICY = '[[rule]]\nname = "api"\nkey = ["ip"]\nlimits = ["1000000/second"]\n'
BODY = (
    b'{"attributes":{"method":"GET","path":"/login","ip":"203.0.113.7"},"headers":"ietf"}'
)
ENVIRON = {"REQUEST_METHOD": "GET", "PATH_INFO": "/login", "REMOTE_ADDR": "203.0.113.7"}
SCOPE = {"type": "http", "method": "GET", "path": "/login", "headers": [], "client": ("203.0.113.7", 50000)}


def wsgi_app(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b"ok"]


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def threads(port: int, rounds: int) -> tuple[float, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)

    def plain() -> None:
        connection.request("POST", "/v1/check", BODY, {"Content-Type": "application/json"})
        connection.getresponse().read()

    limited = WsgiRateLimit(wsgi_app, Client(f"http://127.0.0.1:{port}", on_failure="deny", timeout=5))

    def middleware() -> None:
        limited(dict(ENVIRON), lambda status, headers, exc_info=None: expect(status == "200 OK"))  # type: ignore[arg-type, return-value]

    took: dict[Any, list[float]] = {plain: [], middleware: []}
    for _ in range(rounds):
        for call, times in took.items():
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return statistics.median(took[plain]), statistics.median(took[middleware])


async def coroutines(port: int, rounds: int) -> tuple[float, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"

    async def plain() -> None:
        writer.write(head.encode() + BODY)
        fields = await reader.readuntil(b"\r\n\r\n")
        start = fields.lower().index(b"content-length: ") + 16
        await reader.readexactly(int(fields[start : fields.index(b"\r\n", start)]))

    limited = AsgiRateLimit(asgi_app, AsyncClient(f"http://127.0.0.1:{port}", on_failure="deny", timeout=5))

    async def send(message: Any) -> None:
        expect(message.get("status", 200) == 200)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def middleware() -> None:
        await limited(dict(SCOPE), receive, send)

    took: dict[Any, list[float]] = {plain: [], middleware: []}
    for _ in range(rounds):
        for call, times in took.items():
            start = time.perf_counter()
            await call()
            times.append(time.perf_counter() - start)
    writer.close()
    return statistics.median(took[plain]), statistics.median(took[middleware])


def expect(holds: bool) -> None:
    if not holds:
        raise AssertionError("the request was denied")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    server = Server(POLICY, token=None)
    try:
        port = int(server.url.rsplit(":", 1)[1])
        threads(port, 200)
        print("| middleware | plain POST, µs | middleware, µs | ratio |")
        print("|---|---|---|---|")
        for name, (plain, limited) in {
            "WSGI, against `http.client`": threads(port, rounds),
            "ASGI, against `asyncio` streams": asyncio.run(coroutines(port, rounds)),
        }.items():
            print(f"| {name} | {plain * 1e6:.0f} | {limited * 1e6:.0f} | {limited / plain:.2f} |")
    finally:
        server.close()


if __name__ == "__main__":
    main()
