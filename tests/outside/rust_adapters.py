"""Runs the programs of examples/ on a real Redis: allowed, denied, shared by two instances, and while Redis is down.

Usage: rust_adapters.py FOLDER-OF-THE-PROGRAMS EXAMPLE...
"""

import collections
import contextlib
import http.client
import http.server
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFORMANCE = ROOT / "clients/conformance"
# For a machine that is busy with other work.
PATIENCE = 20
# Each rule has a path of its own.
OUTAGE_RULES = """
[[rule]]
name = "open"
match = { path = "/open" }
key = ["ip"]
limits = ["1/hour"]
on_outage = "allow"

[[rule]]
name = "closed"
match = { path = "/closed" }
key = ["ip"]
limits = ["1/hour"]
on_outage = "deny"
"""
PERMIT_RULES = """
[[rule]]
name = "at-once"
key = []
limits = [{ quota = "1", algorithm = "concurrency", max_hold = "1h" }]
"""
ROUTE_RULES = """
[[rule]]
name = "users"
match = { route = "/users/{id}" }
key = ["ip"]
limits = ["1/hour"]
"""

programs = pathlib.Path(sys.argv[1])
# Numbers for addresses that no other case on this machine's Redis servers has.
runs = itertools.count(1)


def actix_web():
    conformance("actix-web")
    shared_by_instances("actix-web")
    outages("actix-web")
    permits("actix-web")
    with redis() as store, program("actix-web", ROUTE_RULES, store) as port:
        statuses = [answer(port, "GET", path)[0] for path in ("/users/1", "/users/2", "/%75sers/3")]
        assert statuses == [200, 429, 429], f"users are one route, however it is escaped: {statuses}"


def pingora():
    with upstream(Service) as address:
        conformance("pingora", address, own_fields=True)
        shared_by_instances("pingora", address)
        outages("pingora", address)
        permits("pingora", address)


def reqwest_middleware():
    policy = "[[rule]]\nname = 'api'\nkey = []\nlimits = [{ quota = '5/second', burst = 1 }]\non_outage = 'deny'\n"
    with upstream(Api) as address, redis() as store:
        with caller(address, 5, policy, store) as one, caller(address, 5, policy, store) as other:
            printed = one.communicate(timeout=PATIENCE)[0] + other.communicate(timeout=PATIENCE)[0]
        assert printed.count(": 200\n") == 10, printed
        seconds = Api.calls[-1] - Api.calls[0]
        assert seconds > 9 / 5 - 0.2, f"two callers made 10 calls at 5/second in {seconds} s"

        Api.denials = 1
        del Api.calls[:]
        with caller(address, 2, policy, store) as one:
            printed = one.communicate(timeout=PATIENCE)[0]
        assert re.fullmatch(r"call 1: 429\ncall 2: 200\n", printed), printed
        assert Api.calls[1] - Api.calls[0] > 0.9, f"the API asked for a wait of 1 s, and was called at {Api.calls}"

        del Api.calls[:]
        store.process.kill()
        with caller(address, 1, policy, store) as one:
            printed = one.communicate(timeout=PATIENCE)[0]
        assert "not sent" in printed and not Api.calls, f"without a store {len(Api.calls)} calls were sent: {printed}"
    print("reqwest-middleware: two clients share a pace, wait as the API asks, and send nothing without a store")


def metrics():
    with redis() as store:
        printed = counted("metrics", store)
    samples = dict(re.findall(r"^(spillgate_.*) (\d+)$", printed, re.MULTILINE))
    rules = 'domain="default",rule="calls",mode="enforce"'
    expected = {
        f'spillgate_decisions_total{{{rules},decision="allowed",reason="",limit="",source="store"}}': "3",
        f'spillgate_decisions_total{{{rules},decision="denied",reason="limit-exceeded",limit="0",source="store"}}': "1",
        f'spillgate_decisions_total{{{rules},decision="denied",reason="store-unavailable",limit="0",source="outage-policy"}}': "2",
        "spillgate_unmatched_total": "0",
    }
    assert expected.items() <= samples.items(), f"{expected} are not all in {printed}"
    assert "1" in [value for name, value in samples.items() if name.startswith("spillgate_degraded{")], printed
    print("metrics: the facade has the counts of the limiter, with Redis and without")


def opentelemetry():
    with upstream(Collector) as address, redis() as store:
        counted("opentelemetry", store, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{address}")
    resource = Collector.exports[-1]["resourceMetrics"][0]
    families = {one["name"]: one for scope in resource["scopeMetrics"] for one in scope["metrics"]}
    points = families["spillgate.decisions"]["sum"]["dataPoints"]
    counts = collections.Counter()
    for point in points:
        attributes = {one["key"]: one["value"]["stringValue"] for one in point["attributes"]}
        if attributes["rule"] == "calls":
            counts[attributes["mode"], attributes["limit"], attributes["reason"]] += int(point["asInt"])
    denied = {("enforce", "0", "limit-exceeded"): 1, ("enforce", "0", "store-unavailable"): 2}
    expected = {("enforce", "", ""): 3} | denied
    assert expected.items() <= counts.items(), f"{expected} are not all in {counts}"
    degraded = families["spillgate.degraded"]["gauge"]["dataPoints"]
    assert [int(point["asInt"]) for point in degraded] == [1], degraded
    print("opentelemetry: a collector gets the counts of the limiter, with Redis and without")


# --- What all services have in common ---


def conformance(example, before=None, own_fields=False):
    """Plays the cases that the clients for other languages pass, on one Redis."""
    cases = json.loads((CONFORMANCE / "cases.json").read_text())["cases"]
    cases = [case for case in cases if fits(case) and (own_fields or "/own-fields" not in json.dumps(case))]
    assert len(cases) > 15, f"only {len(cases)} cases"
    policy = (CONFORMANCE / "policy.toml").read_text()
    by_proxies = lambda case: case.get("options", {}).get("trusted_proxies", [])
    with redis() as store:
        for proxies, group in itertools.groupby(cases, by_proxies):
            with program(example, policy, store, *proxies, before=before) as port:
                for case in group:
                    play(case, port)
    print(f"{example}: passes {len(cases)} cases of clients/conformance")


def fits(case):
    """Returns whether a case is about requests to a service, as the example's code sets it up."""
    settings = case.get("options", {}).keys() - {"trusted_proxies", "on_failure"}
    about_requests = all("http" in step for step in case["steps"])
    return about_requests and not settings and case.get("server", "up") == "up"


def play(case, port):
    """Plays a case. A machine that stops for a moment is no failure: then a second try passes."""
    try:
        play_once(case, port)
    except AssertionError:
        play_once(case, port)


def play_once(case, port):
    text = json.dumps(case["steps"]).replace("{run}", str(next(runs))).replace("{long}", "a" * 5000)
    for step in json.loads(text):
        request, expect = step["http"], step["expect"]
        status, headers, body = answer(port, request["method"], request["path"], request.get("headers", []), request["peer"])
        place = f"{case['name']}: {str(request)[:200]}: {status} {headers} {body}"
        assert status == expect["status"], place
        assert (status == 200) == expect["reaches_app"], place
        for name, expected in expect.get("headers", {}).items():
            holds(expected, headers.get(name.lower()), place)
        for name, expected in expect.get("json", {}).items():
            holds(expected, json.loads(body).get(name), place)


def holds(expected, actual, place):
    if isinstance(expected, dict) and "$matches" in expected:
        assert actual is not None and re.search(expected["$matches"], actual), f"{place}: {actual!r}, not {expected}"
    elif isinstance(expected, dict):
        assert expected == {"$absent": True} and actual is None, f"{place}: {actual!r}, not {expected}"
    else:
        assert actual == expected, f"{place}: {actual!r}, not {expected!r}"


def shared_by_instances(example, before=None):
    policy = (CONFORMANCE / "policy.toml").read_text()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(redis())
        one, other = (stack.enter_context(program(example, policy, store, before=before)) for _ in range(2))
        statuses = [answer(port, "GET", "/login")[0] for port in (one, other, one, other)]
        assert statuses == [200, 200, 429, 429], f"two instances do not share 2/hour: {statuses}"
    print(f"{example}: two instances share a limit")


def outages(example, before=None):
    """Without a store a rule is open or closed, as it says. A store that hangs is one that is down."""
    for how, name in ((signal.SIGSTOP, "hangs"), (signal.SIGKILL, "is down")):
        with redis() as store, program(example, OUTAGE_RULES, store, before=before) as port:
            for path in ("/open", "/closed"):
                assert answer(port, "GET", path)[0] == 200, f"{path} denies its first request"
                assert answer(port, "GET", path)[0] == 429, f"{path} allows a second request"
            store.process.send_signal(how)
            # Until now the last known state has denied the peer of above.
            status, _, body = answer(port, "GET", "/open", peer="127.0.0.9")
            assert status == 200, f"fail open answers {status} while Redis {name}"
            status, headers, body = answer(port, "GET", "/closed", peer="127.0.0.9")
            assert (status, headers.get("retry-after")) == (503, "1"), f"fail closed: {status} {headers}"
            assert headers["content-type"].startswith("application/problem+json"), headers
            assert json.loads(body)["type"].endswith("#temporary-reduced-capacity"), body
    print(f"{example}: fails open and closed while Redis hangs and is down")


def permits(example, before=None):
    with redis() as store, program(example, PERMIT_RULES, store, before=before) as port:
        for _ in range(3):
            # The release may come after the client has the whole response.
            until(lambda: answer(port, "GET", "/")[0] == 200, "the permit is not released with its response")
    print(f"{example}: releases permits")


def answer(port, method, path, headers=(), peer="127.0.0.1"):
    """Sends a request from an address, and returns status, header fields and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE, source_address=(peer, 0))
    with contextlib.closing(connection):
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return response.status, fields, response.read()


# --- Processes ---


class Store:
    def __init__(self, process, url):
        self.process, self.url = process, url


@contextlib.contextmanager
def redis():
    with tempfile.TemporaryDirectory(prefix="spillgate-") as folder:
        path = pathlib.Path(folder, "redis.sock")
        arguments = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        with ended(subprocess.Popen(arguments, stdout=subprocess.DEVNULL)) as process:
            until(path.exists, "redis-server does not start")
            yield Store(process, f"unix://{path}")


@contextlib.contextmanager
def program(example, policy, store, *arguments, before=None):
    """Starts the service of an example, and yields its port. `before` is its first argument, if it needs one."""
    with rules_file(policy) as rules:
        port = free_port()
        command = [programs / f"{example}-example", *filter(None, [before]), rules, store.url, *arguments]
        with ended(subprocess.Popen(command, env=os.environ | {"PORT": str(port)})) as process:
            until(lambda: listens(port) or process.poll() is not None, f"{example} does not start")
            assert process.poll() is None, f"{example} ended at its start"
            yield port


@contextlib.contextmanager
def caller(address, calls, policy, store):
    with rules_file(policy) as rules:
        command = [programs / "reqwest-middleware-example", f"http://{address}/", str(calls), rules, store.url]
        with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
            yield process


def counted(example, store, **environment):
    """Makes four checks with Redis and two without it, and returns the output."""
    policy = "[[rule]]\nname = 'calls'\nkey = ['user']\nlimits = ['3/hour']\non_outage = 'deny'\n"
    with rules_file(policy) as rules:
        command = [programs / f"{example}-example", rules, store.url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with ended(subprocess.Popen(command, env=os.environ | environment, **pipes)) as process:
            process.stdin.write("ann\n" * 4)
            process.stdin.flush()
            answers = [process.stdout.readline().split(": ")[1].strip() for _ in range(4)]
            assert answers == ["allowed"] * 3 + ["limit-exceeded"], answers
            store.process.kill()
            store.process.wait()
            return process.communicate("bob\n" * 2, timeout=PATIENCE)[0]


@contextlib.contextmanager
def rules_file(policy):
    with tempfile.TemporaryDirectory(prefix="spillgate-") as folder:
        rules = pathlib.Path(folder, "limits.toml")
        rules.write_text(policy)
        yield rules


@contextlib.contextmanager
def upstream(handler):
    """Starts an HTTP server, and yields its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, fields, body):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **fields}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Service(Handler):
    """The service behind a proxy, as clients/conformance describes it."""

    def do_GET(self):
        self.reply(200, {"RateLimit": '"inner";r=7'} if self.path == "/own-fields" else {}, b"ok")

    do_HEAD = do_GET


class Api(Handler):
    """An API: it notes the times of calls, and denies some of them."""

    calls: list[float] = []
    denials = 0

    def do_GET(self):
        Api.calls.append(time.monotonic())
        if Api.denials > 0:
            Api.denials -= 1
            self.reply(429, {"Retry-After": 1}, b"")
        else:
            self.reply(200, {}, b"ok")


class Collector(Handler):
    """Keeps what it gets by OTLP."""

    exports: list[dict] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/metrics", self.path
        Collector.exports.append(json.loads(body))
        self.reply(200, {"Content-Type": "application/json"}, b"{}")


@contextlib.contextmanager
def ended(process):
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def until(holds_now, problem):
    deadline = time.monotonic() + PATIENCE
    while not holds_now():
        assert time.monotonic() < deadline, problem
        time.sleep(0.02)


for example in sys.argv[2:]:
    globals()[example.replace("-", "_")]()
