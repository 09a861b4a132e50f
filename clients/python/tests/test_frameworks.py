"""The examples of README.md, behind the real frameworks. A framework that is not installed is named, and its test skipped."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

from server import CONFORMANCE, Server

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


Answer = tuple[int, dict[str, str], bytes]


def example(name: str) -> str:
    found = re.search(rf"^```python {name}\n(.*?)^```", README, re.M | re.S)
    assert found, f"README.md has no example {name}"
    return found[1]


def over_asgi(
    app: Any, loop: asyncio.AbstractEventLoop, peer: str, path: str, method: str = "GET", fields: Any = ()
) -> Answer:
    sent: list[Any] = []

    async def run() -> None:
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            # After its body a client only listens.
            return messages.pop() if messages else await asyncio.Event().wait()

        async def note(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": list(fields),
            "client": (peer, 50000), "server": ("app.test", 80),
        }
        await app(scope, receive, note)

    loop.run_until_complete(run())
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


def over_wsgi(app: Any, peer: str, path: str, method: str = "GET") -> Answer:
    environ: dict[str, Any] = {"PATH_INFO": path, "REMOTE_ADDR": peer, "REQUEST_METHOD": method}
    setup_testing_defaults(environ)
    started: list[Any] = []
    chunks = app(environ, lambda *response: started.append(response))
    body = b"".join(chunks)
    if hasattr(chunks, "close"):
        chunks.close()
    return int(started[0][0].split()[0]), {name.lower(): value for name, value in started[0][1]}, body


def start_django(urls: list[Any]) -> None:
    """Django has one configuration in a process."""
    import django
    from django.conf import settings
    from django.urls import clear_url_caches

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="for a test", ROOT_URLCONF=())
        django.setup()
    settings.ROOT_URLCONF = tuple(urls)
    clear_url_caches()


def needs(module: str) -> Any:
    return unittest.skipUnless(importlib.util.find_spec(module), f"left out: {module} is not installed")


class Examples(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server((CONFORMANCE / "policy.toml").read_text(), token=None)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.close()

    def run_example(self, name: str, peer: str, server: Server | None = None, **given: Any) -> dict[str, Any]:
        code = example(name).replace("http://127.0.0.1:8080", (server or self.server).url)
        self.peer = peer
        namespace: dict[str, Any] = {"__name__": name, **given}
        exec(compile(code, f"README.md, {name}", "exec"), namespace)
        return namespace

    def is_limited(self, send: Any) -> None:
        """Two logins pass, the third is denied, and so much is in the header fields."""
        for remaining in (1, 0):
            status, headers, body = send("/login")
            self.assertEqual((status, body.strip(b'"')), (200, b"ok"))
            self.assertIn(f"r={remaining};", headers["ratelimit"])
        status, headers, body = send("/login")
        self.assertEqual((status, headers["content-type"]), (429, "application/problem+json"))
        self.assertEqual(json.loads(body)["violated-policies"], ["login"])
        self.assertGreater(int(headers["retry-after"]), 1790)

    def over_asgi(self, app: Any) -> Any:
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        return lambda path: over_asgi(app, loop, self.peer, path)

    def over_wsgi(self, app: Any) -> Any:
        return lambda path: over_wsgi(app, self.peer, path)

    @needs("fastapi")
    def test_fastapi(self) -> None:
        self.is_limited(self.over_asgi(self.run_example("fastapi", "127.2.0.1")["app"]))

    @needs("starlette")
    def test_starlette(self) -> None:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse

        app = Starlette()
        app.add_route("/login", lambda request: JSONResponse("ok"))
        namespace = self.run_example("fastapi", "127.2.0.2") if importlib.util.find_spec("fastapi") else {}
        if not namespace:
            self.skipTest("left out: fastapi is not installed")
        app.add_middleware(namespace["RateLimit"], client=namespace["AsyncClient"](self.server.url))
        self.is_limited(self.over_asgi(app))

    @needs("flask")
    def test_flask(self) -> None:
        self.is_limited(self.over_wsgi(self.run_example("flask", "127.2.0.3")["app"]))

    @needs("django")
    def test_django(self) -> None:
        from django.http import HttpResponse
        from django.urls import path

        urls = [path("login", lambda request: HttpResponse('"ok"', content_type="application/json"))]
        start_django(urls)
        self.is_limited(self.over_wsgi(self.run_example("django", "127.2.0.4")["application"]))
        self.is_limited(self.over_asgi(self.run_example("django-asgi", "127.2.0.5")["application"]))

    def is_limited_at(self, send: Any, path: str, *statuses: int) -> None:
        self.assertEqual([send(path)[0] for _ in statuses], list(statuses))

    @needs("fastapi")
    def test_fastapi_route(self) -> None:
        self.is_limited_at(self.over_asgi(self.run_example("fastapi-route", "127.2.1.1")["app"]), "/search", 200, 200, 429)

    @needs("flask")
    def test_flask_route(self) -> None:
        self.is_limited_at(self.over_wsgi(self.run_example("flask-route", "127.2.1.2")["app"]), "/search", 200, 200, 429)

    @needs("django")
    def test_django_route(self) -> None:
        from django.core.wsgi import get_wsgi_application

        start_django([])
        start_django(self.run_example("django-route", "127.2.1.3")["urlpatterns"])
        self.is_limited_at(self.over_wsgi(get_wsgi_application()), "/search", 200, 200, 429)

    @needs("fastapi")
    def test_failed_logins(self) -> None:
        app, loop = self.run_example("failed-logins", "127.2.1.4")["app"], asyncio.new_event_loop()
        self.addCleanup(loop.close)

        def send(password: str) -> Answer:
            return over_asgi(app, loop, self.peer, "/login", "POST", [(b"password", password.encode())])

        self.is_limited_at(send, "secret", *[200] * 7)
        self.is_limited_at(send, "guess", *[401] * 5, 429)
        self.is_limited_at(send, "secret", 429)

    @needs("fastapi")
    def test_attributes(self) -> None:
        from fastapi import FastAPI

        from spillgate import AsyncClient
        from spillgate.asgi import RateLimit

        app = FastAPI()
        app.get("/healthz")(lambda: "ok")
        app.get("/pace")(lambda: "ok")
        given = {"app": app, "RateLimit": RateLimit, "client": AsyncClient(self.server.url)}
        user_of = self.run_example("attributes", "127.2.1.5", **given)["user_of"]
        self.assertEqual(user_of({"headers": [(b"x-user", b"ada")]}), "ada")
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        self.assertNotIn("ratelimit", over_asgi(app, loop, self.peer, "/healthz")[1])
        fields = [(b"x-user", b"ada")]
        self.assertIn("pace", over_asgi(app, loop, self.peer, "/pace", fields=fields)[1]["ratelimit"])

    @needs("fastapi")
    def test_accounts(self) -> None:
        rules = Server(
            """
            [[rule]]
            name = "free"
            match = { x-plan = { not = "pro" } }
            key = ["x-account"]
            limits = ["3/hour"]

            [[rule]]
            name = "anonymous"
            match = { x-account = { absent = true } }
            key = ["ip"]
            limits = ["2/hour"]
            """,
            token=None,
        )
        self.addCleanup(rules.close)
        app, loop = self.run_example("accounts", "127.2.1.6", server=rules)["app"], asyncio.new_event_loop()
        self.addCleanup(loop.close)

        def send(key: str) -> Answer:
            return over_asgi(app, loop, self.peer, "/v1/models", fields=[(b"x-api-key", key.encode())] if key else [])

        self.is_limited_at(send, "key-of-ada", 200, 200, 200, 429)
        self.is_limited_at(send, "key-of-bob", *[200] * 5)
        self.is_limited_at(send, "", 200, 200, 429)
        self.is_limited_at(send, "invented", 429)

    def test_the_client_and_a_reservation(self) -> None:
        client = self.run_example("client", "")["client"]
        answer = type("Answer", (), {"tokens": 7})
        self.run_example("reserve", "", client=client, call_the_model=lambda: answer)

    def test_every_example_is_tried(self) -> None:
        tried = set(re.findall(r'run_example\("([^"]+)"', Path(__file__).read_text()))
        self.assertEqual(set(re.findall(r"^```python ?(.*)$", README, re.M)), tried)

    @needs("mypy")
    def test_the_examples_are_typed(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for name in ("fastapi", "flask", "fastapi-route", "flask-route", "failed-logins"):
                if importlib.util.find_spec("fastapi") and importlib.util.find_spec("flask"):
                    files.append(Path(folder) / f"example_{name.replace('-', '_')}.py")
                    files[-1].write_text(example(name))
            self.assertTrue(files, "no framework is installed")
            cache = Path(sys.prefix) / "mypy-cache"
            command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}", *map(str, files)]
            environment = {**os.environ, "MYPYPATH": str(Path(__file__).resolve().parents[1] / "src")}
            checked = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
