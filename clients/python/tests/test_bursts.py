"""Bursts against a healthy server, from callers that keep the loop or the interpreter busy."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
import time
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

from server import Server
from spillgate import AsyncClient, Client
from test_frameworks import needs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from bursts import LIMIT, in_a_loop, in_threads, work

POLICY = "".join(f'[[rule]]\nname = "{key}"\nkey = ["{key}"]\nlimits = ["{LIMIT}/day"]\n' for key in ("user", "ip"))


# Longer than the default, since a server that gets no processor is silent, too. The work of each burst takes longer still.
TIMEOUT = 1.0


class Bursts(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server(POLICY, token=None)
        self.addCleanup(self.server.close)

    def test_a_burst_in_a_blocked_loop_is_decided_by_the_server(self) -> None:
        ends = Counter(asyncio.run(in_a_loop(self.server.url, 1000, 4, False, TIMEOUT)))
        self.assertEqual(ends, {"admitted": LIMIT, "denied": 1000 - LIMIT})

    def test_a_burst_of_threads_is_decided_by_the_server(self) -> None:
        ends = Counter(in_threads(self.server.url, 1000, 4, False, TIMEOUT))
        self.assertEqual(ends, {"admitted": LIMIT, "denied": 1000 - LIMIT})

    def test_checks_that_the_server_refuses_harm_no_others(self) -> None:
        for run in (lambda *given: asyncio.run(in_a_loop(*given)), in_threads):
            # Every tenth is refused; each burst has a subject of its own.
            ends = Counter(run(self.server.url, 500, 8.5 if run is in_threads else 8, True, TIMEOUT))
            self.assertEqual(ends, {"admitted": LIMIT, "denied": 450 - LIMIT, "refused": 50})

    @needs("uvicorn")
    @needs("fastapi")
    def test_a_burst_through_a_real_server(self) -> None:
        import uvicorn
        from fastapi import FastAPI

        from spillgate.asgi import RateLimit

        client = AsyncClient(self.server.url, timeout=TIMEOUT)
        app = FastAPI()
        app.add_middleware(RateLimit, client=client)

        @app.get("/")
        async def view() -> str:
            work(2)
            return "ok"

        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        serving.start()
        self.addCleanup(serving.join, 20)
        self.addCleanup(setattr, server, "should_exit", True)

        async def get() -> str:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer.split()[1].decode()

        async def burst() -> list[str]:
            return list(await asyncio.gather(*[get() for _ in range(400)]))

        self.assertEqual(Counter(asyncio.run(burst())), {"200": LIMIT, "429": 400 - LIMIT})


class Outages(unittest.TestCase):
    """A server that is killed, hung, and back."""

    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.server = Server(POLICY, token=None)
        self.addCleanup(self.server.close)

    def seconds_of_burst(self, client: Client) -> tuple[float, set[Any]]:
        """The longest time of 200 checks of as many threads, and what decided them."""
        ends: list[tuple[float, str]] = []

        def check() -> None:
            start = time.monotonic()
            source = client.check({"ip": "192.0.2.1"}).source
            ends.append((time.monotonic() - start, source))

        threads = [threading.Thread(target=check) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(ends), 200)
        return max(seconds for seconds, _ in ends), {source for _, source in ends}

    def test_a_hung_server_is_given_up_in_time_and_noticed_when_it_goes_on(self) -> None:
        with Client(self.server.url) as client:
            client.check({"ip": "192.0.2.1"})
            self.server.hang()
            seconds, sources = self.seconds_of_burst(client)
            self.assertEqual(sources, {"client"})
            # Two time-outs, and what a busy machine adds.
            self.assertLess(seconds, 10)
            self.server.go_on()
            self.is_noticed(client)

    def test_a_killed_server_is_noticed_at_once(self) -> None:
        with Client(self.server.url) as client:
            client.check({"ip": "192.0.2.1"})
            self.server.stop()
            seconds, sources = self.seconds_of_burst(client)
            self.assertEqual(sources, {"client"})
            self.assertLess(seconds, 10)

    def is_noticed(self, client: Client) -> None:
        start = time.monotonic()
        while client.check({"ip": "192.0.2.1"}).source == "client":
            self.assertLess(time.monotonic() - start, 10)
            time.sleep(0.005)


if __name__ == "__main__":
    unittest.main()
