"""Whatever a server answers: no error into the application, no hang, bounded memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import resource
import time
import unittest
from collections.abc import Iterable, Iterator
from typing import Any

from raw import CLOSE, RESET, RawServer, response
from spillgate import AsyncClient, Client, Decision, ProblemError
from spillgate.asgi import RateLimit as AsgiRateLimit
from spillgate.wsgi import RateLimit as WsgiRateLimit

OK = b"HTTP/1.1 200 OK\r\n"
ONE = b'{"results":[{"allowed":true}]}'


def results(*items: object) -> bytes:
    return response(200, {"results": items})


def nested(depth: int) -> bytes:
    return response(200, b'{"results":[' + b"[" * depth + b"]" * depth + b"]}")


def endless(piece: bytes, start: bytes = b"") -> Iterator[bytes]:
    return itertools.chain([start], itertools.repeat(piece))


def field(name: str, value: object) -> bytes:
    return results({"allowed": True, name: value})


def of_limit(name: str, value: object) -> bytes:
    return results({"allowed": True, "limits": [{name: value}]})


# Answers that are not of Spillgate. Those that are functions return pieces.
NO_ANSWERS: dict[str, Any] = {
    "nothing": None,
    "a chunk size that is negative": OK + b"Transfer-Encoding: chunked\r\n\r\n-6\r\n\r\n0\r\n\r\n",
    "a chunk size that is not a number": OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n\r\n",
    "a chunk size of 5,000 digits": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 5000 + b"\r\n",
    "endless chunks": lambda: endless(b"10000\r\n" + b" " * 65536 + b"\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\n"),
    "endless chunks of one byte": lambda: endless(b"1\r\nx\r\n" * 10000, OK + b"Transfer-Encoding: chunked\r\n\r\n"),
    "an endless body": lambda: endless(b"[" * 65536, OK + b"\r\n"),
    "endless header lines": lambda: endless(b"x: y\r\n" * 1000, OK),
    "an endless header line": lambda: endless(b"x" * 65536, OK),
    "endless informational answers": lambda: endless(b"HTTP/1.1 103 Early\r\n\r\n" * 1000),
    "endless trailers": lambda: endless(b"x: y\r\n" * 1000, OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"),
    "a stalled head": b"HTTP/1.1 200 O",
    "a stalled body": OK + b"Content-Length: 30\r\n\r\n{",
    "a reset": lambda: [RESET],
    "a reset within the body": lambda: [OK + b"Content-Length: 30\r\n\r\n{", RESET],
    "an end within the body": lambda: [OK + b"Content-Length: 30\r\n\r\n{", CLOSE],
    "an end within a chunk": lambda: [OK + b"Transfer-Encoding: chunked\r\n\r\n10\r\n{", CLOSE],
    "an end without an answer": lambda: [CLOSE],
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "null bytes": b"\0" * 1000,
    "100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "101": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "201": response(201, ONE),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "301": response(301, ONE, "Location: http://192.0.2.1/"),
    "307": response(307, b"", "Location: /v1/check/batch"),
    "a web server's page": response(404, b"<html>404</html>"),
    "a 404 as JSON without a title": response(404, {"detail": "Not Found"}),
    "a 400 whose title is a number": response(400, {"title": 7}),
    "a 403 that is an array": response(403, ["title"]),
    "408": response(408, {"title": "Request Timeout"}),
    "500": response(500, {"title": "Internal Server Error"}),
    "502": response(502, b"<html>502</html>"),
    "503 of a load balancer": response(503, b"busy"),
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
    "200 with HTML": response(200, b"<html>Welcome</html>"),
    "200 without a body": response(200, b""),
    "broken JSON": response(200, b'{"results":[{"allowed":true}'),
    "JSON that goes on": response(200, ONE + b"x"),
    "deep JSON": nested(100_000),
    "JSON as deep as Python reads": nested(900),
    "a number of 5,000 digits": response(200, b'{"results":[{"allowed":true,"capacity":' + b"9" * 5000 + b"}]}"),
    "no UTF-8": response(200, b'{"results":[{"allowed":true,"rule":"\xff"}]}'),
    "UTF-16": response(200, ONE.decode().encode("utf-16")),
    "a Content-Length that is huge": OK + b"Content-Length: " + b"9" * 15 + b"\r\n\r\n" + ONE,
    "a Content-Length of 5,000 digits": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n" + ONE,
    "a Content-Length that is negative": OK + b"Content-Length: -30\r\n\r\n" + ONE,
    "a Content-Length that is not a number": OK + b"Content-Length: many\r\n\r\n" + ONE,
    "two Content-Lengths": OK + b"Content-Length: 30\r\nContent-Length: 3\r\n\r\n" + ONE,
    "an unknown Transfer-Encoding": OK + b"Transfer-Encoding: gzip\r\n\r\n" + ONE,
    "JSON that is null": response(200, b"null"),
    "JSON that is a number": response(200, b"1e999"),
    "an object without results": response(200, {}),
    "a bare decision": response(200, {"allowed": True}),
    "results that are an object": response(200, {"results": {"0": {"allowed": True}}}),
    "too few results": results(),
    "too many results": results({"allowed": True}, {"allowed": True}),
    "a result that is null": results(None),
    "a result that is a number": results(7),
    "a result that is an array": results([{"allowed": True}]),
    "a decision without allowed": results({"reason": None}),
    "an error that is a string": results({"error": "bad"}),
    "an error that is deep": results({"error": {"status": 500, "detail": [[[[7]]]]}}),
    "an error with a status of 600": results({"error": {"status": 600, "title": "?"}}),
    "an error whose status is a string": results({"error": {"status": "400", "title": "?"}}),
    "a limit that is a string": results({"allowed": True, "limits": ["5/minute"]}),
    "a limit that is null": results({"allowed": True, "limits": [None]}),
    **{
        f"{name}: {value!r}": field(name, value)
        for name, values in {
            "allowed": (None, "true", 1, [True]),
            "reason": (7, ["blocked"], True),
            "rule": (7, {}),
            "limit": (7, []),
            "source": (7, {}),
            "capacity": ("5", 5.5, True, -1, 10**100, []),
            "remaining": ("5", -1, 1 << 64),
            "retry_after_ms": ("5", True, -1, 10**400),
            "reset_after_ms": ([], -1),
            "degraded": ("false", 0),
            "matched": ("false", 0),
            "receipt": (7, {}),
            "headers": ([], "ratelimit", {"ratelimit": 7}, {"ratelimit": None}),
            "limits": ({}, "none", 7),
        }.items()
        for value in values
    },
    **{
        f"limit with {name}: {value!r}": of_limit(name, value)
        for name, value in {"rule": 7, "capacity": "5", "remaining": -1, "allowed": "no", "shadow": 1}.items()
    },
}

# Answers with something in them that is left out.
ANSWERS: dict[str, Any] = {
    "limits that are null": field("limits", None),
    "fields that are null": results({"allowed": True, **dict.fromkeys(("reason", "headers", "denial", "source"), None)}),
    "fields that are not known yet": results({"allowed": True, "new": [1], "limits": [{"rule": "r", "newer": {}}]}),
    "a large number": field("capacity", (1 << 64) - 1),
    "chunks": [OK + b"Transfer-Encoding: chunked\r\n\r\n", *(b"1\r\n%c\r\n" % byte for byte in ONE), b"0\r\n\r\n"],
    "single bytes": [b"%c" % byte for byte in response(200, ONE)],
    "the end of the connection as the end of the body": [OK + b"\r\n" + ONE, CLOSE],
}


class Hostile(unittest.TestCase):
    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)
        self.problems: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))

    def serve(self, answer: Any) -> RawServer:
        server = RawServer(lambda path, body: answer() if callable(answer) else answer)
        self.addCleanup(server.close)
        return server

    def checks(self, url: str, **options: Any) -> Iterator[Decision]:
        """The decisions of both clients about one check."""
        with Client(url, **options) as client:
            yield client.check({"ip": "192.0.2.1"}, headers=True)

        async def check() -> Decision:
            async with AsyncClient(url, **options) as client:
                return await client.check({"ip": "192.0.2.1"}, headers=True)

        yield self.loop.run_until_complete(check())
        self.assertEqual(self.problems, [])

    def test_what_is_not_an_answer_is_a_failure_in_time(self) -> None:
        for name, answer in NO_ANSWERS.items():
            with self.subTest(name):
                server = self.serve(answer)
                start = time.monotonic()
                for decision in self.checks(server.url, timeout=0.1, on_failure="deny"):
                    self.assertEqual((decision.allowed, decision.source), (False, "client"), decision)
                # A busy machine takes longer, but nothing waits for ever.
                self.assertLess(time.monotonic() - start, 20)
                self.assertLessEqual(set(server.paths), {"/v1/check/batch"}, "a redirect is not followed")
                server.close()

    def test_unknown_and_missing_fields_are_left_out(self) -> None:
        for name, answer in ANSWERS.items():
            with self.subTest(name):
                server = self.serve(answer)
                for decision in self.checks(server.url, timeout=20):
                    self.assertEqual((decision.allowed, decision.source), (True, "store"), decision)
                server.close()

    def test_endless_answers_take_a_bounded_amount_of_memory(self) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        server = self.serve(NO_ANSWERS["endless chunks"])
        for decision in self.checks(server.url, timeout=20, on_failure="deny"):
            self.assertIn("the answer has more than", str(decision.error))
        # Kilobytes. The answer is held twice while it is read.
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 100_000)

    def test_an_endless_answer_of_tiny_pieces_ends(self) -> None:
        server = self.serve(NO_ANSWERS["endless chunks of one byte"])
        for decision in self.checks(server.url, timeout=20, on_failure="deny"):
            self.assertIn("too many pieces", str(decision.error))

    def test_a_problem_is_an_error_whatever_else_it_has(self) -> None:
        for problem in (
            {"title": "Bad Request", "status": 400},
            {"title": "", "status": 400, "detail": [[7]], "field": 7},
            {"title": "Bad Request", "status": 400, "detail": None, "field": {}},
        ):
            for answer in (response(400, problem), results({"error": problem})):
                server = self.serve(answer)
                with self.subTest(problem), self.assertRaises(ProblemError) as raised:
                    list(self.checks(server.url, timeout=20))
                self.assertIsNone(raised.exception.field)
                server.close()

    def test_one_garbage_result_is_the_failure_of_one_check(self) -> None:
        def answer(path: str, body: Any) -> bytes:
            return results(*[{"allowed": "?"} if check["key"] == "bad" else {"allowed": True} for check in body])

        server = RawServer(answer)
        self.addCleanup(server.close)

        async def check() -> list[Decision]:
            async with AsyncClient(server.url, timeout=20, on_failure="deny") as client:
                keys = ["good"] * 5 + ["bad"] + ["good"] * 5
                return list(await asyncio.gather(*[client.check(key=key, limit="5/minute") for key in keys]))

        decisions = self.loop.run_until_complete(check())
        self.assertEqual([decision.allowed for decision in decisions], [True] * 5 + [False] + [True] * 5)
        self.assertEqual(len(server.bodies), 1)

    def responses(self, answer: bytes) -> Iterator[tuple[int, dict[str, str], bytes]]:
        """What both middlewares send to their client."""
        server = self.serve(answer)

        def application(environ: Any, start_response: Any) -> Iterable[bytes]:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"ok"]

        async def asgi_application(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"ok"})

        started: list[Any] = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}
        over_wsgi = WsgiRateLimit(application, Client(server.url, timeout=20))
        body = b"".join(over_wsgi(environ, lambda *given: started.append(given)))  # type: ignore[arg-type, func-returns-value]
        yield int(started[0][0].split()[0]), {name.lower(): value for name, value in started[0][1]}, body
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "client": None, "headers": []}
        over_asgi = AsgiRateLimit(asgi_application, AsyncClient(server.url, timeout=20))
        self.loop.run_until_complete(over_asgi(scope, send, send))  # type: ignore[arg-type]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent[0]["headers"]}
        yield sent[0]["status"], headers, sent[1]["body"]

    def test_header_fields_that_http_does_not_allow_are_left_out(self) -> None:
        fields = {
            "ratelimit": '"api";r=4', "x-newline": "a\r\nSet-Cookie: b", "x\r\ny": "c", "x-null": "\0", "": "d",
            "x-wide": "\u2028", "content-length": "5", "Transfer-Encoding": "chunked", "connection": "close", "x-edge": " e ",
        }
        for status, headers, body in self.responses(results({"allowed": True, "headers": fields})):
            self.assertEqual((status, body), (200, b"ok"))
            self.assertEqual(headers, {"content-type": "text/plain", "ratelimit": '"api";r=4', "x-edge": "e"})

    def test_a_denial_that_no_response_can_have_counts_as_absent(self) -> None:
        denied = {"allowed": False, "reason": "limit-exceeded"}
        for denial in (
            7, [], {}, {"status": 99, "body": ""}, {"status": 600, "body": ""}, {"status": "x", "body": ""},
            {"status": 429.5, "body": ""}, {"status": True, "body": ""}, {"status": 429, "body": 7}, {"status": 429},
            {"body": "no"}, {"status": 429, "body": "\udc80"},
        ):
            for status, headers, body in self.responses(results({**denied, "denial": denial})):
                with self.subTest(denial):
                    self.assertEqual((status, headers["content-type"]), (429, "application/problem+json"))
                    self.assertEqual(json.loads(body)["title"], "Quota exceeded")

    def test_a_denial_without_content_has_no_body(self) -> None:
        for code in (204, 304):
            for status, headers, body in self.responses(results({"allowed": False, "denial": {"status": code, "body": "no"}})):
                self.assertEqual((status, headers, body), (code, {}, b""))


if __name__ == "__main__":
    unittest.main()
