"""Runs clients/conformance/cases.json: both clients, the ASGI and the WSGI middleware, on memory and on Redis."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import time
import unittest
import urllib.request
from typing import Any
from urllib.parse import unquote

from server import CONFORMANCE, TOKEN, Server, has_redis
from spillgate import AsyncClient, CallReport, CheckRequest, Client, Decision, Denied, InlineLimit, ProblemError
from spillgate.asgi import RateLimit as AsgiRateLimit
from spillgate.wsgi import RateLimit as WsgiRateLimit

CASES = json.loads((CONFORMANCE / "cases.json").read_text())["cases"]
POLICY = (CONFORMANCE / "policy.toml").read_text()
LONG = "a" * 5000


class Sync:
    """The client for threads and the WSGI middleware."""

    name = "sync"

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.calls: list[CallReport] = []
        self.client = Client(url, observe=self.calls.append, **client_options(options))
        self.middleware = WsgiRateLimit(self.app, self.client, **middleware_options(options))

    def app(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.reached = True
        own = [("RateLimit", '"inner";r=7')] if environ["PATH_INFO"] == "/own-fields" else []
        start_response("200 OK", [("Content-Type", "text/plain"), *own])
        return [b"ok"]

    def http(self, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes, bool]:
        self.reached = False
        lines = [value for name, value in request.get("headers", []) if name == "X-Forwarded-For"]
        environ = {
            "REQUEST_METHOD": request["method"],
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(request["path"], "latin-1"),
            "REMOTE_ADDR": request["peer"],
            **({"HTTP_X_FORWARDED_FOR": ",".join(lines)} if lines else {}),
        }
        started: list[Any] = []
        chunks = self.middleware(environ, lambda *response: started.append(response))  # type: ignore[arg-type]
        body = b"".join(chunks)
        if hasattr(chunks, "close"):
            chunks.close()
        status, headers = started[0][:2]
        return int(status.split()[0]), {name.lower(): value for name, value in headers}, body, self.reached

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self.client, name)(*arguments, **named)

    def scope(self, named: dict[str, Any], ends_by: str, cost: Any) -> Decision | None:
        """Returns the denial if the scope was not entered."""
        try:
            with self.client.reserve(**named) as job:
                if ends_by == "settle":
                    job.settle(cost)
                elif ends_by == "error":
                    raise KeyError("the work failed")
        except Denied as denied:
            return denied.decision
        except KeyError:
            pass
        return None

    def close(self) -> None:
        self.client.close()


class Async:
    """The client for coroutines and the ASGI middleware."""

    name = "async"

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.runner = asyncio.new_event_loop()
        self.calls: list[CallReport] = []
        self.client = AsyncClient(url, observe=self.calls.append, **client_options(options))
        self.middleware = AsgiRateLimit(self.app, self.client, **middleware_options(options))

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached = True
        own = [(b"ratelimit", b'"inner";r=7')] if scope["path"] == "/own-fields" else []
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain"), *own]})
        await send({"type": "http.response.body", "body": b"ok"})

    def http(self, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes, bool]:
        self.reached = False
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": request["method"],
            "path": unquote(request["path"]),
            "client": (request["peer"], 50000),
            "headers": [(name.lower().encode(), value.encode()) for name, value in request.get("headers", [])],
        }

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        self.runner.run_until_complete(self.middleware(scope, receive, send))
        headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, sent[1]["body"], self.reached

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        async def run() -> Any:
            return await getattr(self.client, name)(*arguments, **named)

        return self.runner.run_until_complete(run())

    def scope(self, named: dict[str, Any], ends_by: str, cost: Any) -> Decision | None:
        async def run() -> Decision | None:
            try:
                async with self.client.reserve(**named) as job:
                    if ends_by == "settle":
                        await job.settle(cost)
                    elif ends_by == "error":
                        raise KeyError("the work failed")
            except Denied as denied:
                return denied.decision
            except KeyError:
                pass
            return None

        return self.runner.run_until_complete(run())

    def close(self) -> None:
        self.runner.run_until_complete(self.client.close())
        self.runner.run_until_complete(asyncio.sleep(0))
        self.runner.close()


def client_options(options: dict[str, Any]) -> dict[str, Any]:
    chosen = {"token": options.get("token", TOKEN), "timeout": options.get("timeout_ms", PATIENCE_MS) / 1000}
    if "on_failure" in options:
        chosen["on_failure"] = options["on_failure"]
    return chosen


def middleware_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("cost", "headers", "trusted_proxies") if name in options}


# A machine that is busy with something else is no failure: only cases about failures have a short time-out.
PATIENCE_MS = 20_000


class Run:
    """One case, by one client, on one server."""

    numbers = itertools.count(1)

    def __init__(self, case: dict[str, Any], server: Server, kind: Any) -> None:
        self.case, self.server = case, server
        self.number = next(self.numbers)
        self.subject = kind(server.url, case.get("options", {}))
        self.receipt: str | None = None

    def play(self) -> None:
        try:
            for number, step in enumerate(self.case["steps"], 1):
                try:
                    for _ in range(step.get("repeat", 1)):
                        start = time.monotonic()
                        self.step(self.filled(step))
                        self.took(step, (time.monotonic() - start) * 1000)
                except AssertionError as error:
                    raise AssertionError(f"step {number}: {error}") from error
        finally:
            self.subject.close()

    def took(self, step: dict[str, Any], ms: float) -> None:
        if ms > step.get("within_ms", ms):
            raise AssertionError(f"took {ms:.0f} ms, at most {step['within_ms']} expected")
        if ms < step.get("takes_at_least_ms", ms):
            raise AssertionError(f"took {ms:.0f} ms, at least {step['takes_at_least_ms']} expected")

    def filled(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("{run}", str(self.number)).replace("{long}", LONG)
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, dict):
            return {name: self.filled(item) for name, item in value.items()}
        return value

    def step(self, step: dict[str, Any]) -> None:
        if "server" in step:
            self.server.hang() if step["server"] == "hung" else self.server.go_on()
        elif "pause_ms" in step:
            time.sleep(step["pause_ms"] / 1000)
        elif "http" in step:
            status, headers, body, reached = self.subject.http(step["http"])
            expect = step["expect"]
            named = {name.lower(): value for name, value in expect.get("headers", {}).items()}
            match(expect["status"], status, "status")
            match(named, headers, "headers")
            match(expect["reaches_app"], reached, "reaches_app")
            if "json" in expect:
                match(expect["json"], json.loads(body), "json")
            if step["http"]["method"] == "HEAD" and not reached:
                match("", body.decode(), "body")
        elif "expect_problem" in step:
            try:
                answer = self.call(step)
            except ProblemError as error:
                match(step["expect_problem"], {"status": error.status, **error.problem}, "problem")
            else:
                raise AssertionError(f"no error, but {answer}")
        else:
            match(step["expect"], self.call(step), step["call"])

    def call(self, step: dict[str, Any]) -> Any:
        self.subject.calls.clear()
        try:
            return self.answer(step)
        finally:
            self.is_observed(step["call"])

    def is_observed(self, call: str) -> None:
        operations = {seen.operation for seen in self.subject.calls}
        if call in ("settle", "cancel", "release", "renew") and self.receipt is None:
            return
        expected = {"acquire": "check", "scope": "reserve"}.get(call, call)
        if expected not in operations:
            raise AssertionError(f"the hook saw {operations}, not {expected}")

    def answer(self, step: dict[str, Any]) -> Any:
        name, given = step["call"], step.get("with", {})
        if name == "check_batch":
            return [shown(decision) for decision in self.subject.call(name, given)]
        if name in ("settle", "cancel", "release", "renew"):
            if self.receipt is None:
                # What a reservation without a receipt does by itself.
                return {"result": "unknown"}
            arguments = [given[field] / 1000 if field == "ttl_ms" else given[field] for field in given]
            return {"result": self.subject.call(name, self.receipt, *arguments)}
        named = {field: value for field, value in given.items() if not field.endswith("_ms")}
        if "wait_ms" in given:
            named["wait"] = given["wait_ms"] / 1000
        if "ttl_ms" in given:
            named["ttl"] = given["ttl_ms"] / 1000
        if name == "scope":
            denial = self.subject.scope(named, step["ends_by"], step.get("settles"))
            return {"entered": denial is None, "reason": denial and denial.reason}
        if name == "acquire":
            named["deadline"] = step["deadline_ms"] / 1000
        answer = self.subject.call(name, **named)
        if name == "reserve":
            self.receipt = answer.receipt
            answer = answer.decision
        return shown(answer)


def shown(decision: Decision) -> dict[str, Any]:
    fields = {name: getattr(decision, name) for name in decision.__slots__}
    limits = [{name: getattr(limit, name) for name in limit.__slots__} for limit in decision.limits]
    return {**fields, "limits": limits, "unused": list(decision.unused)}


ABSENT = object()


def match(expected: Any, actual: Any, where: str) -> None:
    """Compares by the rules in README.md of the conformance suite."""
    if isinstance(expected, dict):
        if "$absent" in expected:
            holds = actual is ABSENT
        elif "$matches" in expected:
            holds = isinstance(actual, str) and re.search(expected["$matches"], actual) is not None
        elif "$at_least" in expected or "$at_most" in expected:
            least, most = expected.get("$at_least", 0), expected.get("$at_most", float("inf"))
            holds = isinstance(actual, (int, float)) and least <= actual <= most
        else:
            if not isinstance(actual, dict):
                raise AssertionError(f"{where}: {actual!r} is not an object")
            for name, value in expected.items():
                match(value, actual.get(name, ABSENT), f"{where}.{name}")
            return
    elif isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            raise AssertionError(f"{where}: {actual!r} has not {len(expected)} items")
        for index, (item, given) in enumerate(zip(expected, actual, strict=True)):
            match(item, given, f"{where}[{index}]")
        return
    else:
        holds = actual is not ABSENT and expected == actual and isinstance(expected, bool) == isinstance(actual, bool)
    if not holds:
        raise AssertionError(f"{where}: {'nothing' if actual is ABSENT else repr(actual)}, expected {expected!r}")


class Types(unittest.TestCase):
    def test_requests_have_all_fields_of_the_http_api(self) -> None:
        server = Server(POLICY, token=None)
        self.addCleanup(server.close)
        with urllib.request.urlopen(f"{server.url}/v1/openapi.json") as answer:
            check = json.load(answer)["components"]["schemas"]["Check"]["properties"]
        self.assertEqual(set(CheckRequest.__annotations__), set(check))
        limit = next(schema for schema in check["limit"]["oneOf"] if schema["type"] == "object")
        self.assertEqual(set(InlineLimit.__annotations__), set(limit["properties"]))


class Conformance(unittest.TestCase):
    def setUp(self) -> None:
        # Many cases are about what the clients warn of.
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def test_on_memory(self) -> None:
        self.play(redis=False)

    @unittest.skipUnless(has_redis(), "left out: there is no redis-server")
    def test_on_redis(self) -> None:
        self.play(redis=True)

    def play(self, redis: bool) -> None:
        chosen = os.environ.get("SPILLGATE_CASE", "")
        server = Server(POLICY, redis=redis)
        try:
            with Client(server.url, token=TOKEN, timeout=20) as client:
                # On Redis the first decisions may come before the first connection.
                deadline = time.monotonic() + 20
                while client.check(key="start", limit="1000/second").degraded and time.monotonic() < deadline:
                    time.sleep(0.05)
            for state in ("up", "hung", "down"):
                if state == "hung":
                    server.hang()
                elif state == "down":
                    server.stop()
                for case in CASES:
                    if case.get("server", "up") != state or chosen not in case["name"]:
                        continue
                    for kind in (Sync, Async):
                        with self.subTest(case["name"], client=kind.name, redis=redis):
                            Run(case, server, kind).play()
                if state == "hung":
                    server.go_on()
        finally:
            server.close()


if __name__ == "__main__":
    unittest.main()
