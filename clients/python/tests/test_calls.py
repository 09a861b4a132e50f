"""The calls of both clients, on servers of raw bytes: batches, time, the breaker, and callers that leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
import unittest
from decimal import Decimal
from typing import Any
from unittest import mock

from raw import RESET, RawServer, allowed, response
from spillgate import AsyncClient, CallReport, Client, Decision, ProblemError, TokenError, Unavailable
from spillgate._health import Health
from spillgate._patience import Patience, TimedOut


class Quiet(unittest.TestCase):
    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def serve(self, answer: Any = allowed) -> RawServer:
        server = RawServer(answer)
        self.addCleanup(server.close)
        return server


class Holding:
    """Allows everything, but holds what `is_held` until `let_go`."""

    def __init__(self, is_held: Any) -> None:
        self.is_held = is_held
        self.held = threading.Semaphore(0)
        self.let_go = threading.Event()

    def __call__(self, path: str, body: Any) -> bytes:
        if self.is_held(path, body):
            self.held.release()
            self.let_go.wait(20)
        return allowed(path, body)


def names(batch: Any) -> set[str]:
    return {check["key"] for check in batch}


class Batches(Quiet):
    def test_the_checks_of_one_tick_of_a_loop_leave_together(self) -> None:
        server = self.serve()

        async def checks() -> None:
            async with AsyncClient(server.url, timeout=20) as client:
                await asyncio.gather(*[client.check(key=f"k{n}", limit="1/day") for n in range(400)])

        asyncio.run(checks())
        self.assertEqual(sorted(len(body) for body in server.bodies), [150, 250])
        self.assertEqual(server.paths, ["/v1/check/batch"] * 2)

    def test_checks_of_threads_gather_while_two_batches_are_under_way(self) -> None:
        holding = Holding(lambda path, body: names(body) & {"first", "second"})
        server = self.serve(holding)
        client = Client(server.url, timeout=2000)
        first = [in_thread(client.check, key=key, limit="1/day") for key in ("first", "second")]
        for _ in first:
            self.assertTrue(holding.held.acquire(timeout=20))
        gathered = [in_thread(client.check, key=f"k{n}", limit="1/day") for n in range(20)]
        self.wait_for(lambda: len(client._dispatcher._queue._checks) == 20)
        holding.let_go.set()
        for thread in first + gathered:
            thread.join(20)
        self.assertEqual(sum(len(body) for body in server.bodies), 22)
        # Both of the batches that end let others leave, which take all that is there.
        self.assertLessEqual(len(server.bodies), 4)

    def wait_for(self, condition: Any) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)

    def test_stalled_batches_do_not_hold_up_the_rest(self) -> None:
        holding = Holding(lambda path, body: names(body) & {"first", "second"})
        server = self.serve(holding)
        client = Client(server.url, timeout=20)
        stalled = [in_thread(client.check, key=key, limit="1/day") for key in ("first", "second")]
        for _ in stalled:
            self.assertTrue(holding.held.acquire(timeout=20))
        start = time.monotonic()
        self.assertEqual(client.check(key="third", limit="1/day").source, "store")
        self.assertLess(time.monotonic() - start, 15)
        holding.let_go.set()
        for thread in stalled:
            thread.join(20)

    def test_each_check_of_a_batch_has_its_own_error(self) -> None:
        def answer(path: str, body: Any) -> bytes:
            problem = {"title": "Bad Request", "status": 400, "detail": "no", "field": "cost"}
            return response(200, {"results": [{"error": problem} if check["key"] == "bad" else {"allowed": True} for check in body]})

        server = self.serve(answer)

        async def checks() -> list[Any]:
            async with AsyncClient(server.url, timeout=20) as client:
                calls = [client.check(key=key, limit="1/day") for key in ("good", "bad", "good", "bad")]
                return await asyncio.gather(*calls, return_exceptions=True)

        ends = asyncio.run(checks())
        self.assertEqual([type(end) for end in ends], [Decision, ProblemError] * 2)
        self.assertIsNot(ends[1], ends[3])
        self.assertEqual(ends[1].field, "cost")
        with self.assertRaises(ProblemError) as raised, Client(server.url, timeout=20) as client:
            client.check_batch([{"key": "good"}, {"key": "bad"}])
        self.assertEqual((raised.exception.field, raised.exception.problem["field"]), ("[1].cost", "[1].cost"))

    def test_a_refused_batch_is_the_problem_of_each_check(self) -> None:
        server = self.serve(lambda path, body: response(401, {"title": "Unauthorized"}))

        async def checks() -> list[Any]:
            async with AsyncClient(server.url, timeout=20) as client:
                return await asyncio.gather(*[client.check({}) for _ in range(3)], return_exceptions=True)

        ends = asyncio.run(checks())
        self.assertEqual([end.status for end in ends], [401] * 3)
        self.assertEqual(len({id(end) for end in ends}), 3)

    def test_more_checks_than_a_batch_has_make_several(self) -> None:
        server = self.serve()
        with Client(server.url, timeout=20) as client:
            self.assertEqual(len(client.check_batch([{"key": "k"}] * 600)), 600)
            self.assertEqual(client.check_batch([]), [])
        self.assertEqual([len(body) for body in server.bodies], [250, 250, 100])

    def test_a_caller_that_is_cancelled_before_the_batch_leaves_is_not_charged(self) -> None:
        server = self.serve()

        async def checks() -> None:
            async with AsyncClient(server.url, timeout=20) as client:
                leaving = asyncio.ensure_future(client.check(key="leaving", limit="1/day"))
                staying = asyncio.ensure_future(client.check(key="staying", limit="1/day"))
                await asyncio.sleep(0)
                leaving.cancel()
                await staying

        asyncio.run(checks())
        self.assertEqual([names(body) for body in server.bodies], [{"staying"}])

    def test_long_values_are_cut_and_keep_their_hash(self) -> None:
        server = self.serve()
        with Client(server.url, timeout=20) as client:
            client.check({"user": "x" * 5000, "n": 5})
            client.check_batch([{"key": "y" * 5000, "limit": {"quota": "1/day"}}])
            client.reserve({"user": "z" * 5000})
        sent = [server.bodies[0][0]["attributes"]["user"], server.bodies[1][0]["key"], server.bodies[2]["attributes"]["user"]]
        for value, letter in zip(sent, "xyz", strict=True):
            self.assertRegex(value, f"^{letter}{{1024}}sha256:[0-9a-f]{{64}}{letter}{{1024}}$")

    def test_an_answer_that_a_thread_of_another_call_reads_is_reported_for_each_call(self) -> None:
        server = self.serve()
        reports: list[CallReport] = []

        async def checks() -> None:
            async with AsyncClient(server.url, timeout=20, observe=reports.append) as client:
                await asyncio.gather(*[client.check({}) for _ in range(3)])

        asyncio.run(checks())
        self.assertEqual([(report.operation, len(report.decisions)) for report in reports], [("check", 1)] * 3)


def in_thread(function: Any, *arguments: Any, **named: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, kwargs=named)
    thread.start()
    return thread


class Time(Quiet):
    def test_time_in_which_a_thread_did_not_run_does_not_count(self) -> None:
        now = 0.0
        looks: list[float] = []

        def is_ready(seconds: float) -> bool:
            nonlocal now
            # Each slice ends ten seconds late.
            now += 10 + seconds
            looks.append(seconds)
            return False

        with mock.patch("time.monotonic", lambda: now):
            with self.assertRaises(TimedOut):
                Patience(0.3, lambda left: None).wait(is_ready)
        # Twelve slices of 25 ms, and a last look. Sums of fractions may be off by one.
        self.assertAlmostEqual(len(looks), 13, delta=1)
        # The last look takes no time: what is already there is the answer.
        self.assertEqual(looks[-1], 0)

    def test_a_loop_that_was_blocked_reads_its_answer(self) -> None:
        server = self.serve()

        async def check() -> Decision:
            async with AsyncClient(server.url, timeout=0.1) as client:
                await client.check({})
                checking = asyncio.ensure_future(client.check({}))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                time.sleep(1)
                return await checking

        self.assertEqual(asyncio.run(check()).source, "store")

    def test_a_loop_that_is_blocked_again_and_again_is_no_failure_of_the_server(self) -> None:
        server = self.serve()

        async def checks() -> list[Decision]:
            async with AsyncClient(server.url, timeout=0.1) as client:

                async def check() -> Decision:
                    time.sleep(0.02)
                    decision = await client.check({})
                    time.sleep(0.02)
                    return decision

                return await asyncio.gather(*[check() for _ in range(50)])

        self.assertEqual({decision.source for decision in asyncio.run(checks())}, {"store"})

    def test_a_silent_server_is_given_up_in_time(self) -> None:
        server = self.serve(lambda path, body: None)
        start = time.monotonic()
        with Client(server.url, timeout=0.1) as client:
            error = client.check({}).error
        self.assertEqual(str(error), "the server did not answer in time")

        async def check() -> Exception | None:
            async with AsyncClient(server.url, timeout=0.1) as client:
                return (await client.check({})).error

        self.assertEqual(str(asyncio.run(check())), "the server did not answer in time")
        self.assertGreaterEqual(time.monotonic() - start, 0.2)
        self.assertLess(time.monotonic() - start, 10)


class Connecting(Quiet):
    """The time-out bounds a whole call, also before there is a connection."""

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


class Log(unittest.TestCase):
    """What the logger `spillgate` shows: few lines, and none is lost for good."""

    def setUp(self) -> None:
        self.now = 100.0
        patch = mock.patch("time.monotonic", lambda: self.now)
        patch.start()
        self.addCleanup(patch.stop)
        # At the default level of the root logger, below which most applications show nothing.
        watch = self.assertLogs("spillgate", "WARNING")
        self.lines = watch.__enter__().output
        self.addCleanup(watch.__exit__, None, None, None)

    def test_an_outage_is_logged_when_it_begins_and_when_it_ends(self) -> None:
        health = Health("allow")
        for _ in range(5):
            self.fail_once(health)
        health.answered()
        health.answered()
        self.assertEqual(self.lines, [DOWN, BACK])

    def test_an_outage_within_the_pause_is_logged_once_the_pause_is_over_if_it_lasts(self) -> None:
        health = Health("allow")
        self.fail_once(health)
        health.answered()
        self.now += 9
        self.fail_once(health)
        self.assertEqual(self.lines, [DOWN, BACK])
        self.now += 2
        self.fail_once(health)
        self.fail_once(health)
        health.answered()
        self.assertEqual(self.lines, [DOWN, BACK] * 2)

    def test_a_server_that_answers_every_second_call_does_not_fill_the_log(self) -> None:
        health = Health("allow")
        for _ in range(190):
            self.fail_once(health)
            health.answered()
            self.now += 0.1
        self.assertEqual(self.lines, [DOWN, BACK] * 2)

    def fail_once(self, health: Health) -> None:
        health.failed(Unavailable("silence"), health.answers)

    def test_each_counter_whose_requests_are_refused_is_logged(self) -> None:
        core, error = Client("http://127.0.0.1:1")._core, ProblemError(403, {"detail": "reservations are off"})
        for _ in range(3):
            for counter in ("POST /login", "GET /search"):
                self.assertEqual(core.decide_refused(error, counter).source, "client")
            self.now += 4
        self.assertEqual(self.lines, [refused("POST /login"), refused("GET /search")])
        core.decide_refused(error, "GET /search")
        self.assertEqual(self.lines[2:], [refused("GET /search")])

    def test_at_most_64_counters_are_logged(self) -> None:
        core, error = Client("http://127.0.0.1:1")._core, ProblemError(403, {"detail": "reservations are off"})
        for number in range(100):
            core.decide_refused(error, f"GET /{number}")
        self.assertEqual(len(self.lines), 64)


class RaisingHandler(unittest.TestCase):
    """An error of the application's logging reaches no caller, and ends no connection."""

    def setUp(self) -> None:
        self.client = Client("http://127.0.0.1:1")
        # How many answers had been counted when each line was logged.
        self.answers: list[int] = []
        patch = mock.patch.object(logging.getLogger("spillgate"), "handle", self.handle)
        patch.start()
        self.addCleanup(patch.stop)
        server = RawServer(lambda path, body: allowed(path, body, unused=[f"number {len(server.paths)}"]))
        self.addCleanup(server.close)
        self.server = server

    def handle(self, record: logging.LogRecord) -> None:
        self.answers.append(self.client._core.health.answers)
        raise OSError("no disk")

    def test_about_an_unused_name(self) -> None:
        with Client(self.server.url, timeout=20) as self.client:
            for number in (1, 2):
                self.assertEqual(self.client.check({}).unused, (f"number {number}",))
        self.assertEqual((self.answers, self.server.connections), ([1, 2], 1))

    def test_about_an_unused_name_in_a_coroutine(self) -> None:
        async def check() -> None:
            async with AsyncClient(self.server.url, timeout=20) as client:
                for number in (1, 2):
                    self.assertEqual((await client.check({})).unused, (f"number {number}",))

        asyncio.run(check())
        self.assertEqual((len(self.answers), self.server.connections), (2, 1))

    def test_about_an_outage_and_a_refusal(self) -> None:
        def fail(report: CallReport) -> None:
            raise OSError("no disk")

        with Client("http://127.0.0.1:1", timeout=20, observe=fail) as self.client:
            self.assertIsInstance(self.client.check({}).error, Unavailable)
            self.client._core.health.answered()
            self.assertTrue(self.client._core.decide_refused(ProblemError(403, {}), "POST /login").allowed)
        self.assertEqual(len(self.answers), 4)


DOWN = "WARNING:spillgate:Spillgate does not answer (silence): on_failure='allow' decides"
BACK = "WARNING:spillgate:Spillgate answers again"


def refused(counter: str) -> str:
    line = f"Spillgate refuses a request (403: reservations are off) of '{counter}': on_failure='allow' decides"
    return f"WARNING:spillgate:{line}"


class Unused(unittest.TestCase):
    """Names that no rule uses: in each decision, and once in the log."""

    TOKEN, USR = 'no rule uses the unit "token"', 'no rule uses the attribute "usr"'

    def serve(self, unused: Any) -> str:
        server = RawServer(lambda path, body: allowed(path, body, unused=unused))
        self.addCleanup(server.close)
        return server.url

    def test_every_decision_has_them_and_the_log_names_each_once(self) -> None:
        expected = (self.TOKEN, self.USR)
        url = self.serve([*expected])
        with self.assertLogs("spillgate", "WARNING") as watch, Client(url, timeout=20) as client:
            for _ in range(2):
                decisions = [client.check({}), client.check({}, wait=1), *client.check_batch([{}, {}]), client.reserve({}).decision]
                self.assertEqual([decision.unused for decision in decisions], [expected] * 5)
        self.assertEqual(watch.output, [logged(sentence) for sentence in expected])

    def test_the_coroutine_client_reports_them_too(self) -> None:
        async def check() -> Decision:
            async with AsyncClient(self.serve([self.TOKEN]), timeout=20) as client:
                return await client.check({})

        with self.assertLogs("spillgate", "WARNING") as watch:
            self.assertEqual(asyncio.run(check()).unused, (self.TOKEN,))
        self.assertEqual(watch.output, [logged(self.TOKEN)])

    def test_a_settlement_reports_them_in_the_log(self) -> None:
        with self.assertLogs("spillgate", "WARNING") as watch, Client(self.serve([self.TOKEN]), timeout=20) as client:
            self.assertEqual(client.settle("AQAB", {"token": 1}), "done")
        self.assertEqual(watch.output, [logged(self.TOKEN)])

    def test_the_log_names_at_most_64_and_the_start_of_each(self) -> None:
        sentences = ["x" * 5000, *map(str, range(100))]
        server = RawServer(lambda path, body: allowed(path, body, unused=[sentences.pop(0)]))
        self.addCleanup(server.close)
        with self.assertLogs("spillgate", "WARNING") as watch, Client(server.url, timeout=20) as client:
            while sentences:
                self.assertEqual(len(client.check({}).unused), 1)
        self.assertEqual((watch.output[0], len(watch.output)), (logged("x" * 1000), 64))

    def test_a_decision_has_up_to_64(self) -> None:
        with self.assertLogs("spillgate", "WARNING"), Client(self.serve(["x"] * 64), timeout=20) as client:
            for decision in (client.check({}), *client.check_batch([{}]), client.reserve({}).decision):
                self.assertEqual(decision.unused, ("x",) * 64)

    def test_a_sentence_forges_no_line(self) -> None:
        sentence = "x\r\nERROR:root:\x1b[31mforged \x9b \u2028 \ud800"
        with self.assertLogs("spillgate", "WARNING") as watch, Client(self.serve([sentence]), timeout=20) as client:
            self.assertEqual(client.check({}).unused, (sentence,))
        self.assertEqual(watch.output, [logged(sentence)])
        # So it is one line, and every handler can encode it.
        self.assertTrue(watch.output[0].isprintable())

    def test_a_wrong_type_and_too_many_count_as_absent(self) -> None:
        for unused in (None, [], 7, "x", {"a": "b"}, [self.TOKEN, 7], [None], [[]], ["x"] * 65):
            with self.subTest(unused), self.assertNoLogs("spillgate"), Client(self.serve(unused), timeout=20) as client:
                for decision in (client.check({}), *client.check_batch([{}]), client.reserve({}).decision):
                    self.assertEqual((decision.allowed, decision.source, decision.unused), (True, "store", ()))
                self.assertEqual(client.settle("AQAB", 1), "done")


def logged(sentence: str) -> str:
    return f"WARNING:spillgate:Spillgate reports an unused name: {sentence!r}"


class Breaker(Quiet):
    def test_three_failures_in_a_row_open_it_and_one_answer_closes_it(self) -> None:
        now = 100.0
        with mock.patch("time.monotonic", lambda: now):
            health = Health("allow")
            for _ in range(2):
                health.failed(Unavailable(""), health.answers)
            health.answered()
            for _ in range(2):
                health.failed(Unavailable(""), health.answers)
            self.assertFalse(health.admit())
            health.failed(Unavailable(""), health.answers)
            with self.assertRaises(Unavailable):
                health.admit()
            # One call at a time tries the server again.
            now += 0.11
            self.assertTrue(health.admit())
            now += 10
            with self.assertRaises(Unavailable):
                health.admit()
            health.end_probe()
            self.assertTrue(health.admit())
            health.end_probe()
            # At most ten in a second.
            with self.assertRaises(Unavailable):
                health.admit()
            health.answered()
            self.assertFalse(health.admit())

    def test_a_failure_does_not_count_if_an_answer_came_after_its_call_was_sent(self) -> None:
        health = Health("allow")
        sent = health.answers
        health.answered()
        for _ in range(5):
            health.failed(Unavailable(""), sent)
        self.assertFalse(health.is_open)

    def test_it_stays_closed_while_answers_arrive(self) -> None:
        holding = Holding(lambda path, body: "held" in names(body))
        self.addCleanup(holding.let_go.set)
        server = self.serve(holding)

        async def checks() -> None:
            async with AsyncClient(server.url, timeout=0.2) as client:
                for _ in range(5):
                    held = asyncio.ensure_future(client.check(key="held", limit="1/day"))
                    while not held.done():
                        await asyncio.sleep(0.01)
                        await client.check(key="answered", limit="1/day")
                    self.assertEqual((await held).source, "client")
                self.assertFalse(client._core.health.is_open)

        asyncio.run(checks())

    def test_while_it_is_open_calls_do_not_wait(self) -> None:
        server = self.serve(lambda path, body: None)
        with Client(server.url, timeout=0.05) as client:
            for _ in range(3):
                client.check({})
            connections = server.connections
            with mock.patch.object(client._core.health, "_probe_at", math.inf):
                for _ in range(100):
                    self.assertIn("one call at a time", str(client.check({}).error))
                self.assertEqual(client.reserve({}).decision.source, "client")
            self.assertEqual(server.connections, connections)

    def test_a_server_that_is_back_is_noticed(self) -> None:
        is_back = False
        server = self.serve(lambda path, body: allowed(path, body) if is_back else [RESET])
        with Client(server.url, timeout=20) as client:
            for _ in range(3):
                self.assertEqual(client.check({}).source, "client")
            is_back = True
            start = time.monotonic()
            while client.check({}).source == "client":
                self.assertLess(time.monotonic() - start, 10)
                time.sleep(0.005)

    def test_problems_and_full_servers_are_answers(self) -> None:
        for answer in (
            response(400, {"title": "Bad Request"}),
            response(503, {"reason": "overloaded"}),
            response(503, {"retryable": True}),
            response(200, {"results": [{"error": {"title": "Bad Request", "status": 400}}]}),
        ):
            server = self.serve(lambda path, body, answer=answer: answer)
            with Client(server.url, timeout=20) as client:
                for _ in range(4):
                    with contextlib.suppress(ProblemError):
                        client.check({})
                self.assertFalse(client._core.health.is_open)
                self.assertEqual(client._core.health.answers, 4)

    def test_an_overloaded_server_denies(self) -> None:
        server = self.serve(lambda path, body: response(503, {"reason": "overloaded"}))
        with Client(server.url, timeout=20) as client:
            for decision in (client.check({}), client.reserve({}).decision):
                self.assertEqual((decision.allowed, decision.reason, decision.degraded), (False, "overloaded", True))
                self.assertEqual((decision.source, decision.error), ("outage-policy", None))


class Repeats(Quiet):
    def test_calls_of_reservations_are_repeated_and_checks_are_not(self) -> None:
        server = self.serve(lambda path, body: response(503, {"retryable": True}))
        with Client(server.url, timeout=20) as client:
            client.check({})
            client.reserve({})
            self.assertEqual(client.settle("AQAB", 1), "unavailable")
        self.assertEqual(server.paths, ["/v1/check/batch"] + ["/v1/reserve"] * 3 + ["/v1/settle"] * 3)
        # The same id charges once.
        self.assertEqual(len({body["id"] for body in server.bodies[1:4]}), 1)


class Tokens(Quiet):
    def test_a_function_is_asked_for_each_call(self) -> None:
        tokens = iter(["first\n", "bad\r\nX: y", "third"])
        server = self.serve()
        with Client(server.url, token=lambda: next(tokens), timeout=20) as client:
            client.check({})
            with self.assertRaises(TokenError):
                client.check({})
            self.assertEqual(client.check({}).source, "store")
        self.assertEqual(len(server.bodies), 2)

    def test_a_middleware_goes_by_on_failure_and_the_breaker_does_not_count_it(self) -> None:
        server = self.serve()
        client = Client(server.url, token=lambda: "a b", timeout=20, on_failure="deny")
        for _ in range(5):
            decision = client.decide({})
            self.assertEqual((decision.allowed, decision.reason), (False, "store-unavailable"))
            self.assertIsInstance(decision.error, TokenError)
        self.assertFalse(client._core.health.is_open)
        self.assertEqual(server.connections, 0)


class Waits(Quiet):
    """Checks with a wait, which the server holds, beside others."""

    def setUp(self) -> None:
        super().setUp()
        self.holding = Holding(lambda path, body: path == "/v1/check")
        self.addCleanup(self.holding.let_go.set)
        self.server = self.serve(self.holding)

    def waits_ms(self) -> list[int]:
        return [body["wait_ms"] for path, body in zip(self.server.paths, self.server.bodies, strict=True) if path == "/v1/check"]

    def wait_until_held(self) -> None:
        self.assertTrue(self.holding.held.acquire(timeout=20))

    def test_plain_checks_are_answered_beside_checks_with_a_wait(self) -> None:
        client = Client(self.server.url, connections=2, timeout=20)
        self.addCleanup(client.close)
        decisions: list[Decision] = []
        waiting = [in_thread(lambda: decisions.append(client.check({}, wait=5))) for _ in range(2)]
        self.wait_until_held()
        for _ in range(4):
            self.assertEqual(client.check({}).source, "store")
        time.sleep(0.05)
        # The other check finds a connection when the first has ended.
        self.holding.let_go.set()
        for thread in waiting:
            thread.join()
        self.assertEqual([decision.source for decision in decisions], ["store"] * 2)
        # What it waited for the connection is no longer in its wait.
        self.assertLess(self.waits_ms()[1], self.waits_ms()[0])

    def test_plain_checks_of_a_loop_are_answered_beside_checks_with_a_wait(self) -> None:
        async def checks() -> None:
            async with AsyncClient(self.server.url, connections=2, timeout=20) as client:
                waiting = [asyncio.ensure_future(client.check({}, wait=5)) for _ in range(2)]
                await asyncio.to_thread(self.wait_until_held)
                for _ in range(4):
                    self.assertEqual((await client.check({})).source, "store")
                await asyncio.sleep(0.05)
                self.holding.let_go.set()
                self.assertEqual([decision.source for decision in await asyncio.gather(*waiting)], ["store"] * 2)
                self.assertLess(self.waits_ms()[1], self.waits_ms()[0])

        asyncio.run(checks())

    def test_a_negative_wait_is_none(self) -> None:
        with Client(self.server.url, timeout=20) as client:
            self.assertEqual(client.check({}, wait=-30).source, "store")
        self.assertEqual(self.waits_ms(), [])

    def test_an_endless_wait_is_left_to_the_server_to_refuse(self) -> None:
        self.holding.let_go.set()
        with Client(self.server.url, timeout=20) as client:
            self.assertEqual(client.check({}, wait=math.inf).source, "store")
        self.assertGreater(self.waits_ms()[0], 60_000)

    def test_a_lack_of_connections_is_no_failure_of_the_server(self) -> None:
        client = Client(self.server.url, connections=1, timeout=0.02)
        self.addCleanup(client.close)
        waiting = in_thread(client.check, {}, wait=20)
        self.wait_until_held()
        for _ in range(4):
            self.assertIn("none of 1 connections", str(client.check({}).error))
            self.assertIn("none of 1 connections", str(client.check({}, wait=0.01).error))
        self.assertFalse(client._core.health.is_open)
        self.holding.let_go.set()
        waiting.join()

    def test_a_lack_of_connections_in_a_loop_is_no_failure_of_the_server(self) -> None:
        async def checks() -> None:
            async with AsyncClient(self.server.url, connections=1, timeout=0.02) as client:
                waiting = asyncio.ensure_future(client.check({}, wait=20))
                await asyncio.to_thread(self.wait_until_held)
                for _ in range(4):
                    self.assertIn("none of 1 connections", str((await client.check({})).error))
                    self.assertIn("none of 1 connections", str((await client.check({}, wait=0.01)).error))
                self.assertFalse(client._core.health.is_open)
                # Callers that are cancelled, also while they wait for a connection, leave all of them to others.
                queued = asyncio.ensure_future(client.check({}, wait=20))
                await asyncio.sleep(0)
                for task in (queued, waiting):
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                self.holding.let_go.set()
                client._core.timeout = 20
                self.assertEqual((await client.check({}, wait=5)).source, "store")

        asyncio.run(checks())

    def test_a_client_of_two_loops_keeps_their_connections_apart(self) -> None:
        first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
        client = AsyncClient(self.server.url, timeout=20)
        held = first.create_task(client.check({}, wait=5))
        first.run_until_complete(asyncio.to_thread(self.wait_until_held))
        second.run_until_complete(client.check({}))
        self.holding.let_go.set()
        first.run_until_complete(held)
        self.assertEqual(second.run_until_complete(client.check({})).source, "store")
        self.assertEqual(set(client._by_loop), {first, second})
        for loop in (first, second):
            loop.run_until_complete(client.close())
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        # A new loop drops the entries of those that are closed.
        asyncio.run(client.close())
        self.assertEqual(len(client._by_loop), 1)


class Leaving(Quiet):
    """Callers that leave by an exception, and processes that fork."""

    def test_a_thread_that_is_interrupted_while_it_leads_strands_no_others(self) -> None:
        holding = Holding(lambda path, body: True)
        server = self.serve(holding)
        client = Client(server.url, timeout=20)
        ends: list[str] = []

        def check(key: str) -> None:
            ends.append(client.check(key=key, limit="1/day").source)

        blocking = [in_thread(check, key) for key in ("first", "second")]
        for _ in blocking:
            self.assertTrue(holding.held.acquire(timeout=20))

        class Interrupted(BaseException):
            pass

        def interrupt(*_: object) -> None:
            raise Interrupted

        previous = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        followers: list[threading.Thread] = []

        def follow_and_interrupt() -> None:
            # Once the main thread waits, others join its batch, which leaves when the two have become slow.
            while not client._dispatcher._queue._checks:
                time.sleep(0.001)
            followers.extend(in_thread(check, f"follower{n}") for n in range(5))
            self.assertTrue(holding.held.acquire(timeout=20))
            os.kill(os.getpid(), signal.SIGALRM)

        helper = in_thread(follow_and_interrupt)
        with self.assertRaises(Interrupted):
            client.check(key="main", limit="1/day")
        helper.join()
        holding.let_go.set()
        for thread in blocking + followers:
            thread.join(20)
            self.assertFalse(thread.is_alive())
        # Another caller of the batch has read the answer for all.
        self.assertEqual(ends, ["store"] * 7)
        self.assertEqual(client.check({}).source, "store")
        self.assertEqual(client._dispatcher._queue._free, 64)

    @unittest.skipUnless(hasattr(os, "fork"), "left out: this system does not fork")
    def test_a_child_of_a_fork_takes_no_connection_and_no_lock_of_its_parent(self) -> None:
        server = self.serve()
        client = Client(server.url, timeout=20)
        client.check({})
        with client._dispatcher._lock:
            child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(client.check({}).source != "store"))
            child.start()
        child.join(20)
        self.assertEqual(child.exitcode, 0)
        self.assertEqual(client.check({}).source, "store")
        self.assertEqual(server.connections, 2)

    def ends(self, body: Any) -> list[str]:
        """Cancels the task of a reservation during the call that ends it, and returns the calls that were answered."""
        holding = Holding(lambda path, body: path != "/v1/reserve")
        server = self.serve(holding)
        done: list[str] = []

        async def run() -> None:
            async with AsyncClient(server.url, timeout=20, observe=lambda call: done.append(call.operation)) as client:

                async def block() -> None:
                    async with client.reserve({}) as job:
                        await body(job)

                task = asyncio.ensure_future(block())
                await asyncio.to_thread(lambda: self.assertTrue(holding.held.acquire(timeout=20)))
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                holding.let_go.set()
                while len(done) < 2:
                    await asyncio.sleep(0.001)

        asyncio.run(asyncio.wait_for(run(), 20))
        return done[1:]

    def test_the_call_that_ends_a_reservation_goes_on(self) -> None:
        async def passes(_: Any) -> None:
            pass

        async def fails(_: Any) -> None:
            raise KeyError

        self.assertEqual(self.ends(lambda job: job.settle(1)), ["settle"])
        self.assertEqual(self.ends(lambda job: job.cancel()), ["cancel"])
        self.assertEqual(self.ends(lambda job: job.release()), ["release"])
        self.assertEqual(self.ends(passes), ["release"])
        self.assertEqual(self.ends(fails), ["cancel"])


class Refused(Quiet):
    """What a reservation does after the server refused the call that ends it."""

    def client(self, status: int = 400) -> tuple[Client, RawServer]:
        def answer(path: str, body: Any) -> bytes:
            return response(status, {"title": "refused"}) if path == "/v1/settle" else allowed(path, body)

        server = self.serve(answer)
        return Client(server.url, timeout=20), server

    def test_a_refused_settlement_leaves_the_reservation_to_be_cancelled(self) -> None:
        client, server = self.client()
        with self.assertRaises(ProblemError), client.reserve({}) as job:
            job.settle(-1)
        self.assertEqual(server.paths[1:], ["/v1/settle", "/v1/cancel"])

    def test_a_refused_settlement_leaves_the_reservation_to_be_released(self) -> None:
        client, server = self.client()
        with client.reserve({}) as job, contextlib.suppress(ProblemError):
            job.settle(-1)
        self.assertEqual(server.paths[1:], ["/v1/settle", "/v1/release"])

    def test_a_settlement_that_cannot_be_sent_leaves_the_reservation_to_be_cancelled(self) -> None:
        client, server = self.client()
        with self.assertRaisesRegex(TypeError, "Decimal"), client.reserve({}) as job:
            job.settle(Decimal(1))  # type: ignore[arg-type]
        self.assertEqual(server.paths[1:], ["/v1/cancel"])

    def test_a_reservation_that_has_ended_is_not_ended_again(self) -> None:
        # The server answers 409 if another call has ended it.
        client, server = self.client(status=409)
        with client.reserve({}) as job, contextlib.suppress(ProblemError):
            job.settle(1)
        self.assertEqual(server.paths[1:], ["/v1/settle"])
        client, server = self.client()
        with client.reserve({}) as job, contextlib.suppress(ProblemError):
            job.cancel()
            job.settle(-1)
        self.assertEqual(server.paths[1:], ["/v1/cancel", "/v1/settle"])

    def test_a_refused_settlement_of_a_task_leaves_the_reservation_to_be_cancelled(self) -> None:
        _, server = self.client()

        async def run() -> None:
            async with AsyncClient(server.url, timeout=20) as client, client.reserve({}) as job:
                await job.settle(-1)

        with self.assertRaises(ProblemError):
            asyncio.run(run())
        self.assertEqual(server.paths[1:], ["/v1/settle", "/v1/cancel"])


if __name__ == "__main__":
    unittest.main()
