"""Limits at a route, and limits by outcome, behind the real frameworks."""

from __future__ import annotations

import asyncio
import json
import unittest
from typing import Any

from server import Server
from spillgate import AsyncClient, Client
from spillgate._limiter import Seen
from spillgate.asgi import RateLimit as AsgiRateLimit
from spillgate.wsgi import RateLimit as WsgiRateLimit
from test_frameworks import Answer, needs, over_asgi, over_wsgi, start_django

RULES = """
[[rule]]
name = "items"
match = { path = "/items/{id}" }
key = ["ip"]
limits = ["2/day"]
"""


# A request to an application without routes.
SEEN = Seen("GET", "/", None, None, ())


async def over_nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def failed(status: int) -> bool:
    return status in (401, 500)


class Routes(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(RULES, token=None)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.close()

    def setUp(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)
        # Each test has a client of its own.
        self.peer = f"127.3.0.{sorted(name for name in dir(self) if name.startswith('test_')).index(self._testMethodName)}"

    def async_client(self) -> AsyncClient:
        return AsyncClient(self.server.url, timeout=20, on_failure="deny")

    def client(self) -> Client:
        return Client(self.server.url, timeout=20, on_failure="deny")

    def asgi(self, app: Any) -> Any:
        return lambda path, method="GET", peer=self.peer: over_asgi(app, self.loop, peer, path, method)

    def wsgi(self, app: Any) -> Any:
        return lambda path, method="GET", peer=self.peer: over_wsgi(app, peer, path, method)

    def allows_two(self, send: Any, *paths: str) -> None:
        for remaining, path in zip((1, 0), paths, strict=False):
            status, headers, _ = send(path)
            self.assertEqual(status, 200)
            self.assertIn(f"r={remaining}", headers["ratelimit"])
        self.is_denied(send(paths[0]))

    def is_denied(self, answer: Answer) -> None:
        status, headers, body = answer
        self.assertEqual((status, headers["content-type"]), (429, "application/problem+json"))
        self.assertEqual(json.loads(body)["title"], "Quota exceeded")
        self.assertEqual(int(headers["content-length"]), len(body))
        self.assertIn("r=0", headers["ratelimit"])
        self.assertGreater(int(headers["retry-after"]), 0)

    def counts_failures_only(self, send: Any, login: str, fails: str, raises: str) -> None:
        for _ in range(4):
            self.assertEqual(send(login)[0], 200)
        self.assertEqual(send(fails)[0], 401)
        self.assertEqual(send(login)[0], 200)
        self.assertIn(send(raises)[0], (401, 500))
        # Two have failed, so the limit is used up, also for a login that would succeed.
        self.is_denied(send(login))

    @needs("fastapi")
    def test_fastapi(self) -> None:
        from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response

        from spillgate.fastapi import RouteLimit, RouteLimits

        client = self.async_client()
        app = FastAPI()
        app.add_middleware(RouteLimits)

        @app.get("/users/{id}", dependencies=[Depends(RouteLimit(client, "2/day"))])
        def user(id: str) -> str:
            return id

        def header(request: Any) -> str | None:
            return request.query_params.get("user")

        @app.get("/async/{id}", dependencies=[Depends(RouteLimit(client, "2/day"))])
        async def other(id: str) -> str:
            return id

        router = APIRouter(prefix="/v2")

        @router.get("/users/{id}", dependencies=[Depends(RouteLimit(client, "2/day"))])
        async def included(id: str) -> str:
            return id

        app.include_router(router)
        unlimited = RouteLimit(client, "1/day", key=header)

        @app.get("/unlimited", dependencies=[Depends(unlimited)])
        async def without_subject() -> str:
            return "ok"

        @app.get("/items/{id}", dependencies=[Depends(RouteLimit(client, path="route"))])
        async def by_rules(id: str) -> str:
            return id

        def password(user: str) -> str:
            if user == "raises":
                raise HTTPException(401)
            return user

        # The dependency that fails comes before the view.
        counted = RouteLimit(client, "2/day", name="login", count_if=failed)

        @app.get("/login/{user}", dependencies=[Depends(counted)])
        async def login(user: str = Depends(password)) -> Any:
            return Response(status_code=401 if user == "fails" else 200)

        send = self.asgi(app)
        self.allows_two(send, "/users/1", "/users/2")
        self.allows_two(send, "/async/1", "/async/2")
        self.allows_two(send, "/v2/users/1", "/v2/users/2")
        for _ in range(3):
            status, headers, _ = send("/unlimited")
            self.assertEqual((status, "ratelimit" in headers), (200, False))
        self.counts_failures_only(send, "/login/ada", "/login/fails", "/login/raises")
        self.allows_two(send, "/items/1", "/items/2")

    @needs("fastapi")
    def test_a_route_limit_without_its_middleware_says_so(self) -> None:
        from fastapi import Depends, FastAPI

        from spillgate.fastapi import RouteLimit

        app = FastAPI()

        @app.get("/", dependencies=[Depends(RouteLimit(self.async_client(), "2/day"))])
        async def view() -> str:
            return ""

        with self.assertRaisesRegex(RuntimeError, "add_middleware"):
            self.asgi(app)("/")

    @needs("flask")
    def test_flask(self) -> None:
        from flask import Flask, abort, g

        from spillgate.flask import RouteLimit

        client = self.client()
        app = Flask("app")

        @app.get("/users/<id>")
        @RouteLimit(client, "2/day")
        def user(id: str) -> str:
            self.assertTrue(g.spillgate.allowed)
            return id

        @app.get("/login/<user>")
        @RouteLimit(client, "2/day", count_if=failed)
        def login(user: str) -> tuple[str, int]:
            if user == "raises":
                abort(401)
            return "", 401 if user == "fails" else 200

        @app.get("/crash/<user>")
        @RouteLimit(client, "2/day", count_if=failed)
        def crash(user: str) -> tuple[str, int]:
            if user == "raises":
                raise KeyError(user)
            return "", 401 if user == "fails" else 200

        app.logger.disabled = True
        send = self.wsgi(app)
        self.allows_two(send, "/users/1", "/users/2")
        self.counts_failures_only(send, "/login/ada", "/login/fails", "/login/raises")
        self.counts_failures_only(send, "/crash/ada", "/crash/fails", "/crash/raises")

    @needs("asgiref")
    @needs("flask")
    def test_flask_with_a_coroutine(self) -> None:
        from flask import Flask

        from spillgate.flask import RouteLimit

        app = Flask("app")

        @app.get("/users/<id>")
        @RouteLimit(self.client(), "2/day")
        async def user(id: str) -> str:
            await asyncio.sleep(0)
            return id

        self.allows_two(self.wsgi(app), "/users/1", "/users/2")

    @needs("django")
    def test_django(self) -> None:
        from django.core.asgi import get_asgi_application
        from django.core.exceptions import PermissionDenied
        from django.core.wsgi import get_wsgi_application
        from django.http import HttpResponse
        from django.urls import path

        from spillgate.django import RouteLimit

        @RouteLimit(self.client(), "2/day")
        def user(request: Any, id: str) -> HttpResponse:
            self.assertTrue(request.spillgate.allowed)
            return HttpResponse(id)

        @RouteLimit(self.client(), "2/day", count_if=lambda status: status in (401, 403))
        def login(request: Any, user: str) -> HttpResponse:
            if user == "raises":
                raise PermissionDenied
            return HttpResponse(status=401 if user == "fails" else 200)

        @RouteLimit(self.async_client(), "2/day")
        async def other(request: Any, id: str) -> HttpResponse:
            return HttpResponse(id)

        views = [path("users/<id>", user), path("login/<user>", login), path("async/<id>", other)]
        start_django(views)
        send = self.wsgi(get_wsgi_application())
        self.allows_two(send, "/users/1", "/users/2")
        for _ in range(4):
            self.assertEqual(send("/login/ada")[0], 200)
        self.assertEqual([send(f"/login/{user}")[0] for user in ("fails", "raises")], [401, 403])
        self.is_denied(send("/login/ada"))
        self.allows_two(self.asgi(get_asgi_application()), "/async/1", "/async/2")
        with self.assertRaisesRegex(TypeError, "needs an AsyncClient"):
            RouteLimit(self.client(), "2/day")(other)
        with self.assertRaisesRegex(TypeError, "needs a Client"):
            RouteLimit(self.async_client(), "2/day")(user)

    def test_asgi_middleware_with_a_limit_of_its_own(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/raises":
                raise KeyError
            status = 401 if scope["path"] == "/fails" else 200
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

        def send(middleware: Any) -> Any:
            def send_and_answer(path: str) -> Answer:
                try:
                    return over_asgi(middleware, self.loop, self.peer, path)
                except KeyError:
                    return 500, {}, b""

            return send_and_answer

        # Without a template of a route, all paths share the counter.
        self.allows_two(send(AsgiRateLimit(app, self.async_client(), "2/day")), "/a", "/b")
        counted = AsgiRateLimit(app, self.async_client(), "2/day", name="counted", count_if=failed)
        self.counts_failures_only(send(counted), "/login", "/fails", "/raises")

    def test_wsgi_middleware_with_a_limit_of_its_own(self) -> None:
        def app(environ: Any, start_response: Any) -> Any:
            if environ["PATH_INFO"] == "/raises":
                raise KeyError
            start_response("401 No" if environ["PATH_INFO"] == "/fails" else "200 OK", [])
            return [b"ok"]

        def lazy(environ: Any, start_response: Any) -> Any:
            yield from app(environ, start_response)

        def send(middleware: Any) -> Any:
            def send_and_answer(path: str) -> Answer:
                try:
                    return over_wsgi(middleware, self.peer, path)
                except KeyError:
                    return 500, {}, b""

            return send_and_answer

        self.allows_two(send(WsgiRateLimit(app, self.client(), "2/day")), "/a", "/b")
        for name, application in (("counted", app), ("lazy", lazy)):
            counted = WsgiRateLimit(application, self.client(), "2/day", name=name, count_if=failed)
            self.counts_failures_only(send(counted), "/login", "/fails", "/raises")

    @needs("starlette")
    def test_starlette_middleware_of_a_route(self) -> None:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route

        def view(request: Any) -> PlainTextResponse:
            return PlainTextResponse("ok")

        def limit(quota: str) -> Any:
            return [Middleware(AsgiRateLimit, client=self.async_client(), limit=quota)]

        app = Starlette(routes=[
            Route("/starlette/{id}", view, middleware=limit("2/day")),
            Route("/other/{id}", view, middleware=limit("2/day")),
        ])
        self.allows_two(self.asgi(app), "/starlette/1", "/starlette/2")
        self.allows_two(self.asgi(app), "/other/1", "/other/2")

    def test_attempts_at_the_same_time_cannot_exceed_the_limit(self) -> None:
        reached = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal reached
            reached += 1
            await asyncio.sleep(0.05)
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        limited = AsgiRateLimit(app, self.async_client(), "5/day", name="attempts", count_if=failed)

        async def attempts() -> None:
            async def note(message: Any) -> None:
                pass

            scope = {"type": "http", "method": "POST", "path": "/login", "client": (self.peer, 1), "headers": []}
            await asyncio.gather(*[limited(dict(scope), note, note) for _ in range(50)])  # type: ignore[arg-type]

        self.loop.run_until_complete(attempts())
        self.assertEqual(reached, 5)

    @needs("fastapi")
    def test_a_response_has_the_header_fields_of_the_limit_at_its_route(self) -> None:
        from fastapi import Depends, FastAPI

        from spillgate.fastapi import RouteLimit, RouteLimits

        client = self.async_client()
        app = FastAPI()
        app.add_middleware(RouteLimits)
        app.add_middleware(AsgiRateLimit, client=client)

        @app.get("/items/{id}", dependencies=[Depends(RouteLimit(client, "9/day"))])
        def item(id: str) -> str:
            return id

        self.assertIn('"items";r=1', self.asgi(AsgiRateLimit(over_nothing, client))("/items/1")[1]["ratelimit"])
        status, headers, _ = self.asgi(app)("/items/1")
        self.assertEqual(status, 200)
        self.assertIn('"default";r=8', headers["ratelimit"])

    @needs("fastapi")
    @needs("flask")
    @needs("django")
    def test_the_log_names_the_route_whose_limit_the_server_refuses(self) -> None:
        from django.core.wsgi import get_wsgi_application
        from django.http import HttpResponse
        from django.urls import path
        from fastapi import Depends, FastAPI
        from flask import Flask

        from spillgate import django, fastapi, flask

        # The grammar accepts it, but a period lasts at most a year.
        limit = "5/400d"
        api = FastAPI()
        api.add_middleware(fastapi.RouteLimits)
        api.get("/fastapi/{id}", dependencies=[Depends(fastapi.RouteLimit(self.async_client(), limit))])(lambda id: id)
        web = Flask("web")
        web.get("/flask/<id>")(flask.RouteLimit(self.client(), limit)(lambda id: id))
        view = django.RouteLimit(self.client(), limit)(lambda request, id: HttpResponse(id))
        start_django([path("django/<id>", view)])
        asgi = AsgiRateLimit(over_nothing, self.async_client(), limit)
        wsgi = WsgiRateLimit(web.wsgi_app, self.client(), limit, name="all")
        for send, at, name in (
            (self.asgi(api), "/fastapi/1", "GET /fastapi/{id}"),
            (self.wsgi(web), "/flask/1", "GET /flask/<id>"),
            (self.wsgi(get_wsgi_application()), "/django/1", "/django/<id>"),
            (self.asgi(asgi), "/", "*"),
            (self.wsgi(wsgi), "/", "all"),
        ):
            with self.assertLogs("spillgate", "WARNING") as watch:
                # Their clients fail closed.
                self.assertEqual(send(at)[0], 503)
            self.assertEqual(len(watch.output), 1)
            self.assertIn("refuses a request (400: ", watch.output[0])
            self.assertIn(f" of '{name}': on_failure='deny' decides", watch.output[0])

    def test_bytes_are_read_as_latin_1(self) -> None:
        limited = AsgiRateLimit(over_nothing, self.async_client(), attributes=lambda _: {"user": b"ad\xe4", "plan": 7})
        check = limited.request({}, SEEN)
        assert check is not None
        self.assertEqual(check["attributes"], {"ip": "unknown", "method": "GET", "path": "/", "user": "ad\xe4", "plan": "7"})
        check = AsgiRateLimit(over_nothing, self.async_client(), "5/minute", key=lambda _: bytearray(b"ada")).request({}, SEEN)
        assert check is not None
        self.assertEqual(check["key"], '["*","ada"]')

    def test_a_limit_that_is_misspelt_is_an_error_at_start(self) -> None:
        for limit in ("unlimited", "block", "5/minute", "1_000/30s", "5/s", "5/1_500ms", "1/year"):
            WsgiRateLimit(lambda *_: [], self.client(), limit)
        for limit in ("", "20", "5/minut", "5 per minute", "5/minutes", "5/", "/s", "5/2w", "1__0/s", "_1/s", "5/_s", "+5/s", "5/s\n", "٥/s", "none"):
            with self.subTest(limit), self.assertRaisesRegex(ValueError, 'such as "5/minute"'):
                WsgiRateLimit(lambda *_: [], self.client(), limit)
        with self.assertRaisesRegex(TypeError, "got 5"):
            WsgiRateLimit(lambda *_: [], self.client(), 5)  # type: ignore[arg-type]

    def test_a_client_of_the_other_kind_is_an_error_at_start(self) -> None:
        with self.assertRaisesRegex(TypeError, r"must be a spillgate\.Client here, got AsyncClient"):
            WsgiRateLimit(lambda *_: [], self.async_client())  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, r"must be a spillgate\.AsyncClient here, got Client"):
            AsgiRateLimit(over_nothing, self.client())  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "got str: '5/minute'"):
            WsgiRateLimit(lambda *_: [], "5/minute")  # type: ignore[arg-type]

    @needs("fastapi")
    @needs("flask")
    def test_a_client_of_the_other_kind_is_an_error_at_a_route_too(self) -> None:
        from spillgate import fastapi, flask

        with self.assertRaisesRegex(TypeError, "got Client"):
            fastapi.RouteLimit(self.client(), "5/minute")  # type: ignore[arg-type]
        with self.assertRaisesRegex(TypeError, "got AsyncClient"):
            flask.RouteLimit(self.async_client(), "5/minute")  # type: ignore[arg-type]

    def test_options_that_contradict_each_other_are_errors(self) -> None:
        for options in (
            {"key": str}, {"name": "login"}, {"headers": "new"}, {"path": "template"},
            {"limit": "5/minute", "attributes": dict},
        ):
            with self.subTest(options), self.assertRaises(ValueError):
                WsgiRateLimit(lambda *_: [], self.client(), **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
