"""Runs the recipes of deploy/proxies with real proxies while Spillgate works, hangs, is stopped, and denies.

Usage: outage.py PATH-OF-THE-SPILLGATE-BINARY [PROXY ...]
"""

import concurrent.futures
import http.client
import http.server
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
RECIPES = ROOT / "deploy/proxies"
# No answer may take longer, in any state of Spillgate. The recipes give a call 400 ms.
PATIENCE = 0.9
RULES = """
[server]
trusted_proxies = ["127.0.0.1"]
[server.auth]
original = "{original}"
[[rule]]
name = "login"
match = {{ path = "/login" }}
key = ["ip"]
limits = ["2/hour"]
"""


def nginx(folder, recipe):
    kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    main = folder / "nginx.conf"
    main.write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr crit; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{recipe}\n}}"
    )
    return ["-e", "stderr", "-p", folder, "-c", main]


def traefik(folder, recipe, exchange):
    dynamic = folder / "spillgate.yaml"
    dynamic.write_text(recipe)
    static = exchange((RECIPES / "traefik/static.yaml").read_text())
    main = folder / "static.yaml"
    main.write_text(static.replace("/etc/traefik/spillgate.yaml", str(dynamic)))
    return ["--configFile", main, "--global.checknewversion=false"]


def caddy(folder, recipe):
    main = folder / "Caddyfile"
    main.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + recipe)
    return ["run", "--adapter", "caddyfile", "--config", main]


def haproxy(folder, recipe, exchange):
    script = folder / "spillgate.lua"
    script.write_text(exchange((RECIPES / "haproxy/spillgate.lua").read_text()))
    main = folder / "haproxy.cfg"
    main.write_text(recipe.replace("/etc/haproxy/spillgate.lua", str(script)))
    return ["-f", main, "-db"]


# For each proxy: the name of its files, the source of method and URI, and its start.
PROXIES = {
    "nginx": ("{}.conf", "x-original", lambda folder, recipe, _: nginx(folder, recipe)),
    "traefik": ("{}.yaml", "x-forwarded", traefik),
    "caddy": ("{}.Caddyfile", "x-forwarded", lambda folder, recipe, _: caddy(folder, recipe)),
    "haproxy": ("{}.cfg", "x-forwarded", haproxy),
}


def main():
    binary, chosen = sys.argv[1], sys.argv[2:] or PROXIES
    pages_show_the_recipes()
    left_out = ["kong: no package of it", "apisix: no package of it"]
    for proxy in chosen:
        program = os.environ.get(f"SPILLGATE_{proxy.upper()}") or find(proxy)
        if not program:
            left_out.append(f"{proxy}: it is not installed")
            continue
        for variant in ["fail-open", "fail-closed"]:
            slowest = try_variant(binary, program, proxy, variant)
            print(f"{proxy}, {variant}: the slowest answer took {slowest * 1000:.0f} ms", flush=True)
    for line in left_out:
        print(f"left out: {line}")


def pages_show_the_recipes():
    """The page of each proxy has its unchanged fail-open recipe, and a link to the other one. Envoy has one file for both."""
    for page in [*PROXIES, "kong", "apisix"]:
        text = (ROOT / f"docs/how-to/{page}.md").read_text()
        for recipe in sorted((RECIPES / page).iterdir()):
            assert f"deploy/proxies/{page}/{recipe.name}" in text, f"docs/how-to/{page}.md has no link to {recipe.name}"
            if recipe.name.startswith("fail-open"):
                assert recipe.read_text() in text, f"docs/how-to/{page}.md does not show the current {recipe.name}"
    for page, name in [("envoy", "rate-limit.yaml"), ("envoy-ext-authz", "ext-authz.yaml")]:
        text = (ROOT / f"docs/how-to/{page}.md").read_text()
        assert (RECIPES / "envoy" / name).read_text() in text, f"docs/how-to/{page}.md does not show the current {name}"


def find(proxy):
    return shutil.which(proxy, path=f"{os.environ['PATH']}:/usr/sbin:{ROOT}/target/tools/python/bin")


def try_variant(binary, program, proxy, variant):
    name, original, arguments = PROXIES[proxy]
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"spillgate-{proxy}-"))
    application = serve(lambda: 200)
    ports = {8000: free_port(), 8001: free_port(), 3000: application.server_port, 8080: free_port()}
    for temporary in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]:
        (folder / temporary).mkdir()

    def exchange(text):
        return re.sub(r":(8000|8001|3000|8080)\b", lambda match: f":{ports[int(match[1])]}", text)

    recipe = exchange((RECIPES / proxy / name.format(variant)).read_text())
    settings = folder / "spillgate.toml"
    settings.write_text(RULES.format(original=original))
    processes = []
    try:
        spillgate = start_spillgate(binary, settings, ports[8080], folder)
        processes.append(spillgate)
        command = [str(part) for part in [program, *arguments(folder, recipe, exchange)]]
        log = open(folder / "log", "w")
        front = subprocess.Popen(command, cwd=folder, env={**os.environ, "HOME": str(folder)}, stdout=log, stderr=log)
        processes.append(front)
        story = Story(ports[8000], proxy, variant)
        eventually("the proxy listens", lambda: story.get("/up")[0] == 200)
        story.works()

        spillgate.send_signal(signal.SIGSTOP)
        eventually("every thread of Spillgate stands still", lambda: stands_still(spillgate.pid))
        story.is_away("hung")
        spillgate.send_signal(signal.SIGCONT)
        eventually("limits hold again after a hang", lambda: story.get("/login")[0] == 429)

        spillgate.kill()
        spillgate.wait()
        story.is_away("stopped")

        statuses = {"now": 200}
        stand_in = serve(lambda: statuses["now"], ports[8080])
        eventually("a Spillgate that is back is asked", lambda: story.get("/login")[0] == 200 and stand_in.connections)
        before = stand_in.connections
        for _ in range(30):
            story.expect("/other", 200, "with a Spillgate that allows")
        opened = stand_in.connections - before
        assert opened <= 3, f"{proxy}, {variant}: 30 calls opened {opened} connections to Spillgate"
        # A denial by `on_outage = "deny"` stays a denial, with fail-open too.
        statuses["now"] = 503
        status = story.get("/other")[0]
        assert status in (500, 503), f"{proxy}, {variant}: a denial by Spillgate became {status}"
        stand_in.shutdown()
        return story.slowest
    except Exception:
        sys.stderr.write((folder / "log").read_text() if (folder / "log").exists() else "")
        raise
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        application.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def start_spillgate(binary, settings, port, folder):
    # Without SPILLGATE_TRAEFIK and its like, which are no settings.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPILLGATE_")}
    environment |= {"SPILLGATE_SERVER__RESP__ADDRESS": "off", "SPILLGATE_SERVER__GRPC__ADDRESS": "off"}
    command = [binary, "serve", "--config", settings, "--http", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0"]
    process = subprocess.Popen(command, env=environment, stderr=open(folder / "spillgate.log", "w"))

    def listens():
        assert process.poll() is None, (folder / "spillgate.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually("Spillgate listens", listens)
    return process


def stands_still(process):
    states = [path.read_text().rsplit(")", 1)[1].split()[0] for path in pathlib.Path(f"/proc/{process}/task").glob("*/stat")]
    return set(states) == {"T"}


class Story:
    def __init__(self, port, proxy, variant):
        self.port, self.name, self.variant = port, f"{proxy}, {variant}", variant
        self.slowest = 0.0

    def get(self, path, headers={}):
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        started = time.monotonic()
        try:
            client.request("GET", path, headers={"Host": "app.example", **headers})
            answer = client.getresponse()
            answer.read()
            return answer.status, time.monotonic() - started, answer.headers
        except OSError:
            return 0, time.monotonic() - started, {}
        finally:
            client.close()

    def expect(self, path, status, when):
        got, took, headers = self.get(path)
        assert got == status, f"{self.name}: {path} {when} was answered {got}, not {status}"
        assert took < PATIENCE, f"{self.name}: {path} {when} took {took:.2f} s"
        self.slowest = max(self.slowest, took)
        return headers

    def works(self):
        for _ in range(2):
            self.expect("/login?x=1", 200, "with room")
        for path in ["/login", "/login?y=2", "/%6cogin"]:
            headers = self.expect(path, 429, "beyond the limit")
            assert 1 <= int(headers["Retry-After"]) <= 1800, headers
            assert headers["RateLimit"].startswith('"login";r=0'), headers
        self.expect("/other", 200, "without a rule")
        status = self.get("/other", {f"x-{number}": "v" for number in range(85)})[0]
        assert status == 200, f"{self.name}: a request with 85 fields was answered {status}"
        # No head is so large that its request passes, or that the proxy ends.
        for fields in [95, 98, 99, 110, 300]:
            status = self.get("/login", {f"x-{number}": "v" for number in range(fields)})[0]
            assert status >= 400, f"{self.name}: /login beyond the limit with {fields} fields was answered {status}"
        for length in [15100, 15150, 15200, 15250, 70000]:
            status = self.get("/login", {"x-fill": "v" * length})[0]
            assert status >= 400, f"{self.name}: /login beyond the limit with a field of {length} bytes was answered {status}"
        self.expect("/other", 200, "after large heads")

    def is_away(self, how):
        status = 200 if self.variant == "fail-open" else 503
        for path in ["/login", "/other"]:
            headers = self.expect(path, status, f"while Spillgate is {how}")
            retry_after = headers.get("Retry-After")
            assert retry_after == ("1" if status == 503 else None), f"{self.name}, {how}: Retry-After is {retry_after}"
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(self.expect, "/login", status, f"while Spillgate is {how}") for _ in range(24)]:
                done.result()


def serve(status, port=0):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self):
            super().setup()
            self.server.connections += 1

        def do_GET(self):
            self.send_response(status())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        # With the default backlog of 5, a burst waits a second for its SYN to be sent again.
        request_queue_size = 128

        def handle_error(self, *_):
            """A proxy may drop its connections whenever it likes."""

    server = Server(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.connections = 0
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def eventually(claim, holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, f"not within 20 s: {claim}"
        time.sleep(0.1)


main()
