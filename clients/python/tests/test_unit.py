"""What needs no server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import socket
import threading
import time
import unittest
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from unittest import mock
from uuid import UUID

from server import CONFORMANCE
from spillgate import AsyncClient, Client, ClientAddress, Decision, ProblemError, Unavailable
from spillgate._core import PAUSE_SECONDS, TRIES, _encoder, encode, read_answer
from spillgate._http1 import BadResponse, Response, parse
from spillgate._middleware import Middleware, bounded
from spillgate.aio import AsyncReservation
from spillgate.client import Reservation, _Pool


class Address(unittest.TestCase):
    def test_every_client_is_found(self) -> None:
        for row in json.loads((CONFORMANCE / "addresses.json").read_text()):
            with self.subTest(row):
                proxies = ClientAddress(row["trusted_proxies"])
                self.assertEqual(proxies.attribute(row["peer"], row["forwarded_for"]), row["ip"])

    def test_a_port_of_thousands_of_digits_is_no_port(self) -> None:
        proxies = ClientAddress(["127.0.0.1"])
        self.assertEqual(proxies.attribute("127.0.0.1", ["1.2.3.4:" + "9" * 5000]), "127.0.0.1")
        self.assertEqual(proxies.attribute("127.0.0.1", ["1.2.3.4:" + "0" * 5000 + "80"]), "1.2.3.4")

    def test_refuses_what_is_no_network(self) -> None:
        with self.assertRaisesRegex(ValueError, "'10.0.0.0/33' is no network; write one such as"):
            ClientAddress(["10.0.0.0/33"])
        with self.assertRaisesRegex(TypeError, "must be a list"):
            ClientAddress("10.0.0.0/8")


class Http1(unittest.TestCase):
    def test_reads_a_response_however_it_is_cut(self) -> None:
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\n{\"a\r\n3\r\n\":1\r\n1\r\n}\r\n0\r\n\r\n"
        sized = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}"
        for whole in (chunked, sized):
            for end in range(len(whole)):
                self.assertIsNone(parse(whole[:end]), whole[:end])
            self.assertEqual(parse(whole), Response(200, b'{"a":1}', True))

    def test_knows_when_a_connection_ends(self) -> None:
        closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
        self.assertEqual(parse(closing), Response(200, b"{}", False))
        until_the_end = b"HTTP/1.1 200 OK\r\n\r\n{}"
        self.assertIsNone(parse(until_the_end))
        self.assertEqual(parse(until_the_end, ended=True), Response(200, b"{}", False))
        with self.assertRaises(BadResponse):
            parse(b"SSH-2.0-OpenSSH\r\n\r\n")


class Steps(unittest.TestCase):
    """The core of both clients, without a server."""

    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_a_check_is_sent_once_and_decided_without_an_answer(self) -> None:
        for on_failure, allowed in (("allow", True), ("deny", False)):
            steps = Client(on_failure=on_failure)._checking({"key": "u1"})  # type: ignore[arg-type]
            message, _ = next(steps)  # type: ignore[misc]
            self.assertTrue(message.endswith(b'\r\n\r\n{"key":"u1"}'), message)
            with self.assertRaises(StopIteration) as end:
                steps.throw(Unavailable("no answer"))
            self.assertEqual((end.exception.value.allowed, end.exception.value.source), (allowed, "client"))

    def test_a_reservation_is_sent_again_after_a_pause(self) -> None:
        steps = Client()._reserving({"id": "1"})
        first = next(steps)
        for _ in range(TRIES - 1):
            self.assertEqual(steps.throw(Unavailable("no answer")), PAUSE_SECONDS)
            self.assertEqual(next(steps), first)
        with self.assertRaises(StopIteration):
            steps.throw(Unavailable("no answer"))

    def test_while_the_breaker_rests_a_call_returns_at_once_and_is_no_failure(self) -> None:
        client = Client()
        steps = client._reserving({"id": "1"})
        for _ in range(2):
            check = client._checking({})
            next(check)
            with self.assertRaises(StopIteration):
                check.throw(Unavailable("no answer"))
        next(steps)
        # This is the third failure: the call that trips the breaker has no further try.
        with self.assertRaises(StopIteration):
            steps.throw(Unavailable("no answer"))
        with self.assertRaises(StopIteration) as end:
            next(client._reserving({"id": "2"}))
        self.assertIn("one call a second tries again", str(end.exception.value.error))
        self.assertEqual(client._health._failures, 3)

    def test_the_server_waits_for_what_is_left_when_the_call_has_its_connection(self) -> None:
        client = Client()
        steps = client._checking({}, wait=5)
        next(steps)
        message, deadline = next(steps)  # type: ignore[misc]
        with mock.patch("time.monotonic", return_value=deadline - client.timeout - 1):
            self.assertTrue(message().endswith(b'{"wait_ms":1000}'))

    def test_an_overloaded_server_denies_a_reservation(self) -> None:
        overloaded = Response(503, b'{"status":503,"detail":"no room","reason":"overloaded"}', True)
        steps = Client()._reserving({"id": "1"})
        next(steps)
        with self.assertRaises(StopIteration) as end:
            steps.send(overloaded)
        denied = end.exception.value
        self.assertEqual((denied.allowed, denied.reason, denied.degraded), (False, "overloaded", True))
        self.assertEqual((denied.source, denied.error), ("outage-policy", None))

    def test_a_retryable_answer_is_repeated_and_no_failure_of_the_server(self) -> None:
        retryable = Response(503, b'{"status":503,"detail":"a shard is down","retryable":true}', True)
        client = Client()
        steps = client._ending("settle", "AQAB", cost=1)
        first = next(steps)
        for _ in range(TRIES - 1):
            self.assertEqual(steps.send(retryable), PAUSE_SECONDS)
            self.assertEqual(next(steps), first)
        with self.assertRaises(StopIteration) as end:
            steps.send(retryable)
        self.assertEqual(end.exception.value, "unavailable")
        # The next check asks the server.
        self.assertIsInstance(next(client._checking({})), tuple)

    def test_answers_that_are_not_of_spillgate_are_failures(self) -> None:
        foreign = {"503 of a load balancer": Response(503, b"busy", True), "other JSON": Response(200, b"{}", True)}
        for name, response in foreign.items():
            with self.subTest(name):
                client = Client()
                for _ in range(3):
                    steps = client._checking({})
                    next(steps)
                    with self.assertRaises(StopIteration) as end:
                        steps.send(response)
                    self.assertEqual((end.exception.value.allowed, end.exception.value.source), (True, "client"))
                # The breaker has tripped: the next check decides without asking.
                with self.assertRaises(StopIteration):
                    next(client._checking({}))

    def test_a_middleware_decides_what_the_server_refuses(self) -> None:
        refused = Response(400, b'{"detail":"no such field"}', True)
        steps = Client()._checking({})
        next(steps)
        with self.assertRaises(ProblemError):
            steps.send(refused)
        steps = Client()._deciding({})
        next(steps)
        with self.assertRaises(StopIteration) as end:
            steps.send(refused)
        self.assertEqual((end.exception.value.allowed, end.exception.value.source), (True, "client"))

    def test_reads_and_writes_json_as_the_standard_library_does(self) -> None:
        body = {"a": "\u2028é\"", "b": [1, 2.5, None, True, {"c": {}}], "d": {1: "number"}}
        self.assertEqual(encode(body), json.dumps(body, separators=(",", ":")).encode())
        with self.assertRaises(TypeError):
            encode({"a": object()})
        with mock.patch("json.encoder.c_make_encoder", None):
            for encoder in (_encoder(), lambda body: encode(body).decode()):
                self.assertEqual(encoder(MappingProxyType({"a": MappingProxyType({"b": 1})})), '{"a":{"b":1}}')
        self.assertEqual(read_answer(200, b' {"a": [1]}\r\n'), {"a": [1]})
        for body in (b'{"a":1} x', b"", b"\xff", b'{"a":'):
            with self.assertRaises(Unavailable):
                read_answer(200, body)


class Timeout(unittest.TestCase):
    """The time-out bounds a whole call, also before there is a connection."""

    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def seconds_of_check(self, client: Client) -> float:
        start = time.monotonic()
        decision = client.check({})
        self.assertEqual(str(decision.error), "the server did not answer in time")
        return time.monotonic() - start

    def test_a_slow_lookup_of_the_name_is_bounded(self) -> None:
        def slow(*_: object, **__: object) -> None:
            time.sleep(2)
            raise socket.gaierror(socket.EAI_NONAME, "no such name")

        with mock.patch("socket.getaddrinfo", slow):
            self.assertLess(self.seconds_of_check(Client("http://name:1", timeout=0.1)), 1)

    def test_a_name_that_is_not_found_fails_open(self) -> None:
        with mock.patch("socket.getaddrinfo", side_effect=socket.gaierror(socket.EAI_NONAME, "no such name")):
            decision = Client("http://name:1", timeout=20).check({})
        self.assertTrue(decision.allowed)
        self.assertIn("no such name", str(decision.error))

    def test_all_addresses_of_the_host_share_the_time(self) -> None:
        # No connection is accepted: the queue of the listener is full.
        listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.addCleanup(listener.close)
        for _ in range(4):
            filler = socket.socket()
            self.addCleanup(filler.close)
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        silent = (socket.AF_INET, socket.SOCK_STREAM, 0, "", listener.getsockname())
        with mock.patch("socket.getaddrinfo", return_value=[silent] * 10):
            self.assertLess(self.seconds_of_check(Client("http://name:1", timeout=0.2)), 1)

    def test_the_next_address_is_tried_after_one_that_refuses(self) -> None:
        refusing = socket.create_server(("127.0.0.1", 0))
        refused = (socket.AF_INET, socket.SOCK_STREAM, 0, "", refusing.getsockname())
        refusing.close()
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        accepting = (socket.AF_INET, socket.SOCK_STREAM, 0, "", listener.getsockname())
        with mock.patch("socket.getaddrinfo", return_value=[refused, accepting]):
            self.seconds_of_check(Client("http://name:1", timeout=0.3))
        listener.settimeout(20)
        listener.accept()[0].close()


class _HoldingServer:
    """Allows checks, and holds those with a wait until `let_go`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.held = threading.Semaphore(0)
        self.waits_ms: list[int] = []
        self.let_go = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connected = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connected], daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        # A caller that gave up closes its connection.
        with connected, contextlib.suppress(OSError):
            while received := connected.recv(65536):
                wait_ms = json.loads(received.partition(b"\r\n\r\n")[2]).get("wait_ms", 0)
                if wait_ms:
                    self.waits_ms.append(wait_ms)
                    self.held.release()
                    self.let_go.wait(20)
                answer = b'{"allowed":true,"source":"store"}'
                connected.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))

    def close(self) -> None:
        self.let_go.set()
        self._listener.close()


class Waits(unittest.IsolatedAsyncioTestCase):
    """Checks with a wait, which the server holds, beside others."""

    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.server = _HoldingServer()
        self.addCleanup(self.server.close)

    def wait_until_held(self) -> None:
        self.assertTrue(self.server.held.acquire(timeout=20))

    def test_plain_checks_are_answered_beside_checks_with_a_wait(self) -> None:
        client = Client(self.server.url, connections=2, timeout=20)
        self.addCleanup(client.close)
        decisions: list[Decision] = []
        waiting = [threading.Thread(target=lambda: decisions.append(client.check({}, wait=5))) for _ in range(2)]
        for thread in waiting:
            thread.start()
        self.wait_until_held()
        start, calls = time.monotonic(), 0
        while calls < 4 or time.monotonic() < start + 0.1:
            self.assertEqual(client.check({}).source, "store")
            calls += 1
        # The other check finds a place when the first has ended.
        self.server.let_go.set()
        for thread in waiting:
            thread.join()
        self.assertEqual([decision.source for decision in decisions], ["store"] * 2)
        # What it waited for the place is no longer in its wait.
        self.assertLess(self.server.waits_ms[1], self.server.waits_ms[0])

    async def test_plain_checks_of_a_loop_are_answered_beside_checks_with_a_wait(self) -> None:
        async with AsyncClient(self.server.url, connections=2, timeout=20) as client:
            waiting = [asyncio.ensure_future(client.check({}, wait=5)) for _ in range(2)]
            await asyncio.to_thread(self.wait_until_held)
            start, calls = time.monotonic(), 0
            while calls < 4 or time.monotonic() < start + 0.1:
                self.assertEqual((await client.check({})).source, "store")
                calls += 1
            self.server.let_go.set()
            self.assertEqual([decision.source for decision in await asyncio.gather(*waiting)], ["store"] * 2)
            self.assertLess(self.server.waits_ms[1], self.server.waits_ms[0])

    def test_a_negative_wait_is_none(self) -> None:
        with Client(self.server.url, timeout=20) as client:
            self.assertEqual(client.check({}, wait=-30).source, "store")
        self.assertEqual(self.server.waits_ms, [])

    def test_an_endless_wait_is_left_to_the_server_to_refuse(self) -> None:
        self.server.let_go.set()
        with Client(self.server.url, timeout=20) as client:
            self.assertEqual(client.check({}, wait=math.inf).source, "store")
        self.assertGreater(self.server.waits_ms[0], 60_000)

    async def test_a_message_is_made_when_the_call_has_its_connection(self) -> None:
        order: list[str] = []

        def message() -> bytes:
            order.append("message")
            return b"POST / HTTP/1.1\r\n\r\n{}"

        def noting(connect: Callable[..., Any]) -> Callable[..., Any]:
            def connect_and_note(*arguments: Any) -> Any:
                order.append("connection")
                return connect(*arguments)

            return connect_and_note

        with Client(self.server.url) as client:
            client._pool._connect = noting(client._pool._connect)  # type: ignore[method-assign]
            client._pool.post(message, time.monotonic() + 20)
        async with AsyncClient(self.server.url) as other:
            other._pool._connect = noting(other._pool._connect)  # type: ignore[method-assign]
            await other._pool.post(message, time.monotonic() + 20)
        self.assertEqual(order, ["connection", "message"] * 2)

    def test_a_client_of_two_loops_keeps_their_connections_apart(self) -> None:
        first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
        client = AsyncClient(self.server.url, timeout=20)
        held = first.create_task(client.check({}, wait=5))
        first.run_until_complete(asyncio.to_thread(self.wait_until_held))
        second.run_until_complete(client.check({}))
        self.server.let_go.set()
        first.run_until_complete(held)
        self.assertEqual(second.run_until_complete(client.check({})).source, "store")
        self.assertEqual(set(client._pool._by_loop), {first, second})
        for loop in (first, second):
            loop.run_until_complete(client.close())
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        # A new loop drops the entries of those that are closed.
        asyncio.run(client.close())
        self.assertEqual(len(client._pool._by_loop), 1)

    def test_a_lack_of_places_is_no_failure_of_the_server(self) -> None:
        client = Client(self.server.url, connections=1, timeout=0.05)
        self.addCleanup(client.close)
        waiting = threading.Thread(target=client.check, args=[{}], kwargs={"wait": 20})
        waiting.start()
        self.wait_until_held()
        for _ in range(4):
            self.assertIn("all 1 connections are in use", str(client.check({}).error))
            self.assertIn("calls with a wait use 1 of 1 connections", str(client.check({}, wait=0.01).error))
        self.server.let_go.set()
        waiting.join()
        # The breaker has not tripped: the next check asks the server.
        self.assertIsInstance(next(client._checking({})), tuple)
        self.assertEqual(client._health._failures, 0)

    async def test_a_lack_of_places_in_a_loop_is_no_failure_of_the_server(self) -> None:
        async with AsyncClient(self.server.url, connections=1, timeout=0.05) as client:
            waiting = asyncio.ensure_future(client.check({}, wait=20))
            await asyncio.to_thread(self.wait_until_held)
            for _ in range(4):
                self.assertIn("all 1 connections are in use", str((await client.check({})).error))
                lack = (await client.check({}, wait=0.01)).error
                self.assertIn("calls with a wait use 1 of 1 connections", str(lack))
            self.assertEqual(client._health._failures, 0)
            # Callers that are cancelled, also while they wait for a place, leave all places to others.
            queued = asyncio.ensure_future(client.check({}, wait=20))
            await asyncio.sleep(0)
            for task in (queued, waiting):
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            self.server.let_go.set()
            client.timeout = 20
            self.assertEqual((await client.check({}, wait=5)).source, "store")


class Fork(unittest.TestCase):
    def test_a_thread_of_the_child_takes_no_socket_of_the_parent(self) -> None:
        pool = Client()._pool
        of_the_parent = pool._idle
        seen = []

        class Watched(_Pool):
            def __setattr__(self, name: str, value: object) -> None:
                super().__setattr__(name, value)
                # What another thread sees at this moment.
                seen.append((self._process == os.getpid(), self._idle is of_the_parent))

        pool.__class__ = Watched
        with mock.patch("os.getpid", return_value=os.getpid() + 1):
            pool._start_after_fork()
        self.assertEqual(seen[-1], (True, False))
        self.assertNotIn((True, True), seen)

    def test_closing_in_the_loop_of_the_child_leaves_the_connections_of_the_parent(self) -> None:
        async def closes(loop: asyncio.AbstractEventLoop) -> bool:
            client, connection = AsyncClient(), mock.Mock()
            client._pool._start(loop).idle.append((connection, time.monotonic()))
            await client.close()
            return bool(connection.close.called)

        async def closes_its_own() -> bool:
            return await closes(asyncio.get_running_loop())

        loop_of_the_parent = asyncio.new_event_loop()
        self.addCleanup(loop_of_the_parent.close)
        self.assertFalse(asyncio.run(closes(loop_of_the_parent)))
        self.assertTrue(asyncio.run(closes_its_own()))


class Cancelled(unittest.IsolatedAsyncioTestCase):
    """What goes on after the task of a reservation is cancelled."""

    async def ends(self, body) -> list[str]:  # type: ignore[no-untyped-def]
        """Runs a reservation's block, cancels its task during the call that ends it, and returns the calls that ended."""
        sent, go_on, done = asyncio.Event(), asyncio.Event(), []

        async def post(message: bytes, _: float) -> Response:
            sent.set()
            await go_on.wait()
            done.append(message.split()[1].decode())
            return Response(200, b'{"result":"done"}', True)

        client = AsyncClient()
        client._pool.post = post  # type: ignore[method-assign]

        async def block() -> None:
            async with AsyncReservation(client, Decision.from_json({"allowed": True, "receipt": "AQAB"})) as job:
                await body(job)

        task = asyncio.ensure_future(block())
        await sent.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        go_on.set()
        for _ in range(10):
            await asyncio.sleep(0)
        return done

    async def test_the_call_that_ends_a_reservation_goes_on(self) -> None:
        async def passes(_: AsyncReservation) -> None:
            pass

        async def fails(_: AsyncReservation) -> None:
            raise KeyError

        self.assertEqual(await self.ends(lambda job: job.settle(1)), ["/v1/settle"])
        self.assertEqual(await self.ends(lambda job: job.cancel()), ["/v1/cancel"])
        self.assertEqual(await self.ends(lambda job: job.release()), ["/v1/release"])
        self.assertEqual(await self.ends(passes), ["/v1/release"])
        self.assertEqual(await self.ends(fails), ["/v1/cancel"])


class Refused(unittest.IsolatedAsyncioTestCase):
    """What a reservation does after the server refused the call that ends it."""

    receipt = Decision.from_json({"allowed": True, "receipt": "AQAB"})

    def setUp(self) -> None:
        self.sent: list[str] = []

    def answer(self, message: bytes, _: float, status: int = 400) -> Response:
        self.sent.append(message.split()[1].decode())
        if self.sent[-1] == "/v1/settle":
            return Response(status, b'{"detail":"refused"}', True)
        return Response(200, b'{"result":"done"}', True)

    def reservation(self, status: int = 400) -> Reservation:
        self.sent.clear()
        client = Client()
        client._pool.post = lambda message, until: self.answer(message, until, status)  # type: ignore
        return Reservation(client, self.receipt)

    def test_a_refused_settlement_leaves_the_reservation_to_be_cancelled(self) -> None:
        with self.assertRaises(ProblemError), self.reservation() as job:
            job.settle(-1)
        self.assertEqual(self.sent, ["/v1/settle", "/v1/cancel"])

    def test_a_refused_settlement_leaves_the_reservation_to_be_released(self) -> None:
        with self.reservation() as job, contextlib.suppress(ProblemError):
            job.settle(-1)
        self.assertEqual(self.sent, ["/v1/settle", "/v1/release"])

    def test_a_settlement_that_cannot_be_sent_leaves_the_reservation_to_be_cancelled(self) -> None:
        with self.assertRaisesRegex(TypeError, "Decimal"), self.reservation() as job:
            job.settle(Decimal(1))  # type: ignore[arg-type]
        self.assertEqual(self.sent, ["/v1/cancel"])

    def test_a_reservation_that_has_ended_is_not_ended_again(self) -> None:
        # The server answers 409 if another call has ended it.
        with self.reservation(status=409) as job, contextlib.suppress(ProblemError):
            job.settle(1)
        self.assertEqual(self.sent, ["/v1/settle"])
        with self.reservation() as job, contextlib.suppress(ProblemError):
            job.cancel()
            job.settle(-1)
        self.assertEqual(self.sent, ["/v1/cancel", "/v1/settle"])

    async def test_a_refused_settlement_of_a_task_leaves_the_reservation_to_be_cancelled(self) -> None:
        async def post(message: bytes, until: float) -> Response:
            return self.answer(message, until)

        client = AsyncClient()
        client._pool.post = post  # type: ignore
        with self.assertRaises(ProblemError):
            async with AsyncReservation(client, self.receipt) as job:
                await job.settle(-1)
        self.assertEqual(self.sent, ["/v1/settle", "/v1/cancel"])


class Values(unittest.TestCase):
    def test_any_text_is_a_value_that_the_server_accepts(self) -> None:
        self.assertEqual(bounded("/é"), "/é")
        self.assertEqual(bounded("a" * 4096), "a" * 4096)
        self.assertRegex(bounded("a" * 4097), r"^a{1024}sha256:[0-9a-f]{64}a{1024}$")
        # A character that the cut divides is left out.
        self.assertRegex(bounded("a" + "é" * 4096 + "b"), r"^aé{511}sha256:[0-9a-f]{64}é{511}b$")
        self.assertEqual(bounded("\udc80"), "\ufffd")
        # The length counts after the replacement.
        self.assertRegex(bounded("\udc80" * 1366), r"^\ufffd{341}sha256:[0-9a-f]{64}\ufffd{341}$")

    def attributes(self, path: str, more: dict[str, Any]) -> Any:
        middleware: Middleware[Any, Any, Any] = Middleware(None, None, attributes=lambda _: more)
        check = middleware._check_of(None, "GET", path, "192.0.2.1", ())
        assert check is not None
        return check["attributes"]

    def test_a_decoded_path_is_escaped_where_the_server_would_cut_or_decode_it(self) -> None:
        self.assertEqual(self.attributes("/é/?a#b%41", {})["path"], "/é/%3Fa%23b%2541")
        # Nor does text that is no Unicode become a question mark.
        self.assertEqual(self.attributes("/\udc80", {})["path"], "/\ufffd")

    def test_attributes_of_a_request_may_be_none_or_no_text(self) -> None:
        class Plan(str, Enum):
            GOLD = "gold"

        more = {"user": 42, "guest": None, "ip": None, "team": UUID(int=7), "plan": Plan.GOLD}
        team = "00000000-0000-0000-0000-000000000007"
        expected = {"ip": "192.0.2.1", "method": "GET", "path": "/", "user": "42", "team": team, "plan": "gold"}
        self.assertEqual(json.loads(encode(self.attributes("/", more))), expected)

    def test_an_answer_may_have_fields_that_are_not_known_yet(self) -> None:
        decision = Decision.from_json({"allowed": True, "new": 1, "limits": [{"rule": "r", "newer": 2}]})
        self.assertEqual((decision.allowed, decision.limits[0].rule), (True, "r"))

    def test_options_are_checked(self) -> None:
        for options in ({"on_failure": "open"}, {"timeout": 0}, {"connections": 0}):
            with self.assertRaises(ValueError):
                Client(**options)  # type: ignore[arg-type]
        with self.assertRaisesRegex(ValueError, "url must be http://HOST:PORT"):
            Client("127.0.0.1:8080")


if __name__ == "__main__":
    unittest.main()
