"""What the applications of all Python frameworks have in common."""

import collections
import json
import os
import socket
import threading
import time
from urllib.parse import parse_qs

# Decisions by their source, as the hook for metrics sees them: more than the handler, which sees no denial.
_decided = collections.Counter()
_lock = threading.Lock()


def _observe(call):
    with _lock:
        _decided.update(decision.source for decision in call.decisions)


CLIENT_OPTIONS = {
    "url": os.environ["SPILLGATE_URL"],
    "on_failure": os.environ["ON_FAILURE"],
    "observe": _observe,
}


def counts():
    with _lock:
        return json.dumps(_decided)


def attributes_of(path, query):
    """The attributes of a request, or None for one that is not limited."""
    if path != "/work":
        return None
    fields = parse_qs(query)
    run, kind = fields["run"][0], fields["kind"][0]
    if kind == "malformed":
        # The server refuses a name above 64 bytes.
        return {"run": run, "n" * 65: ""}
    if kind == "long":
        return {"run": run + "x" * 10_000}
    return {"run": run}


def source_of(decision):
    """The body of a response: where its decision comes from, and why not from the server."""
    return f"source={decision.source} {decision.error or ''}"


def spend_half(query):
    """Computes for half of the CPU time that the request asks for."""
    microseconds = int(parse_qs(query).get("cpu", ["0"])[0]) / 2
    end = time.thread_time_ns() + microseconds * 1000
    while time.thread_time_ns() < end:
        pass


class SpendingASGI:
    """ASGI middleware that computes before the limiter."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            spend_half(scope["query_string"].decode())
        await self.app(scope, receive, send)


def spending_wsgi(app):
    """WSGI middleware that computes before the limiter."""

    def spending(environ, start_response):
        spend_half(environ["QUERY_STRING"])
        return app(environ, start_response)

    return spending


def attributes_of_scope(scope):
    return attributes_of(scope["path"], scope["query_string"].decode())


def attributes_of_environ(environ):
    return attributes_of(environ["PATH_INFO"], environ["QUERY_STRING"])


def listening():
    """The socket on which the generator's connections wait."""
    return socket.socket(fileno=int(os.environ["LISTEN_FD"]))


def serve_asgi(app):
    import uvicorn

    config = uvicorn.Config(app, backlog=8192, access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening()])
