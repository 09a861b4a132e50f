#!/usr/bin/env python3
"""Runs a real Envoy in front of the gRPC API, configured as docs/how-to/envoy.md shows.

Usage: envoy.py PATH-OF-SPILLGATE PATH-OF-ENVOY
Prints a row for each claim; the exit status is 1 if one does not hold.
"""

import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

SECONDS_MAX = 20
DOCUMENT = os.path.join(os.path.dirname(__file__), "../../docs/how-to/envoy.md")
RECIPE = os.path.join(os.path.dirname(__file__), "../../deploy/proxies/envoy/rate-limit.yaml")
# Rules beside the documented ones: a shadow rule, one that denies in an outage, and those of the routes below.
MORE_RULES = """
[[rule]]
name = "watched"
domain = "web"
mode = "shadow"
key = ["watched"]
limits = ["1/hour"]

[[rule]]
name = "strict"
domain = "web"
key = ["strict"]
limits = ["100/hour"]
on_outage = "deny"

[[rule]]
name = "priced"
domain = "web"
key = ["priced"]
limits = ["10/hour"]
postpaid = true

[[rule]]
name = "refunded"
domain = "web"
key = ["refunded"]
limits = ["2/hour"]
negative_hits = true

[[rule]]
name = "hidden"
domain = "web"
key = ["hidden"]
limits = ["1/hour"]
"""
# The descriptors of a route, under `typed_per_filter_config`: each has one header, and options.
PER_ROUTE = {
    "/priced": [
        ("priced", "hits_addend: { number: 0 }"),
        ("priced", 'apply_on_stream_done: true, hits_addend: { format: "%RESP(x-cost)%" }'),
    ],
    "/refunded": [
        ("refunded", "hits_addend: { number: 2 }"),
        ("refunded", 'apply_on_stream_done: true, hits_addend: { format: "%RESP(x-cost)%", is_negative_hits: true }'),
    ],
    "/hidden": [("user", ""), ("hidden", 'x_ratelimit_option: "OFF"')],
    "/constant": [("tenant", "limit: { rate_limit: { requests_per_unit: 3, unit: HOUR } }")],
    "/tenant": [("tenant", "limit: { dynamic_metadata: { metadata_key: { key: tenants, path: [{ key: limit }] } } }")],
}
# The costs that the application states.
COSTS = {"/priced": 20, "/refunded/whole": 2, "/refunded/nothing": 0}
# A filter that looks up a tenant's limit, as an authorization service would.
LOOKUP = """
- name: envoy.filters.http.lua
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
    default_source_code:
      inline_string: |
        function envoy_on_request(handle)
          local plan = handle:headers():get("x-plan")
          if plan then
            local limit = { requests_per_unit = tonumber(plan), unit = "HOUR" }
            handle:streamInfo():dynamicMetadata():set("tenants", "limit", limit)
          end
        end
"""
BOOTSTRAP = """
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }
static_resources:
  listeners:
  - name: main
    address: { socket_address: { address: 127.0.0.1, port_value: @PORT@ } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
@ACCESS_LOG@
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { prefix: /download }
                route: { cluster: upstream }
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
@PER_ROUTE@
              - match: { prefix: /login }
                route: { cluster: upstream }
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
@ADDRESSES@
@ROUTES@
              - match: { prefix: / }
                route:
                  cluster: upstream
@RATE_LIMITS@
@TENANTS@
                    - actions: [{ request_headers: { header_name: x-watched, descriptor_key: watched } }]
                    - actions: [{ request_headers: { header_name: x-strict, descriptor_key: strict } }]
@FILTERS@
            - name: envoy.filters.http.router
              typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: upstream
    load_assignment: { cluster_name: upstream, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @UPSTREAM@ } } } }] }] }
  - name: spillgate
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment: { cluster_name: spillgate, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: @GRPC@ } } } }] }] }
"""


def main(spillgate, envoy):
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(spillgate, envoy, folder)
        try:
            return 0 if rig.tell() else 1
        finally:
            rig.end()


class Rig:
    def __init__(self, spillgate, envoy, folder):
        self.spillgate, self.envoy, self.folder = spillgate, envoy, folder
        self.processes = []
        self.holds = True

    def tell(self):
        server = self.serve([])
        self.recipe()
        self.proxy()
        user = {"x-user": "ada"}
        first, second, third = (self.get("/", user) for _ in range(3))
        self.claim("two calls an hour are allowed", [first[0], second[0]] == [200, 200])
        self.claim("the third is denied with 429", third[0] == 429 and "x-envoy-ratelimited" in third[1])
        self.claim("an allowed response has the remaining quota", '"user";r=1;t=' in first[1].get("ratelimit", ""))
        self.claim("it has Envoy's own headers too", third[1].get("x-ratelimit-remaining") == "0"
                   and third[1].get("x-ratelimit-limit", "").startswith("2, 2;w=3600"))
        wait = int(third[1].get("retry-after", "0"))
        self.claim("a denial has the seconds to wait", 1 <= wait <= 1800)
        self.claim("a denial has one problem as its body", third[1].get("content-type") == "application/problem+json"
                   and b"quota-exceeded" in third[2])
        self.claim("another user is allowed", self.get("/", {"x-user": "bob"})[0] == 200)
        watched = [self.get("/", {"x-watched": "x"}) for _ in range(3)]
        self.claim("a shadow rule denies no request and adds no header",
                   all(code == 200 and "ratelimit" not in headers for code, headers, _ in watched))
        self.claim("a value that is not UTF-8 is decided on",
                   [self.get("/", {"x-user": b"\xff\xfe"})[0] for _ in range(3)] == [200, 200, 429])
        logins = [self.get(f"/login?{number}", {}) for number in range(3)]
        self.claim("logins are limited by address", [code for code, _, _ in logins] == [200, 200, 429])
        self.claim("a rule for every address charges a login once", '"clients";r=49' in logins[0][1].get("ratelimit", ""))
        download = {"x-download": "x"}
        self.claim("a download of any size is allowed", self.get("/download", download)[0] == 200)
        self.claim("its bytes deny the next one",
                   eventually(lambda: self.get("/download", download)[0] == 429))

        self.claim("the cost in a response header denies the next request",
                   self.get("/priced", {"x-priced": "x"})[0] == 200
                   and eventually(lambda: self.get("/priced", {"x-priced": "x"})[0] == 429))
        whole, nothing = {"x-refunded": "whole"}, {"x-refunded": "nothing"}
        self.claim("a refund in a response header makes room for the next request",
                   self.get("/refunded/whole", whole)[0] == 200
                   and eventually(lambda: self.get("/refunded/whole", whole)[0] == 200))
        refused = [self.get("/refunded/nothing", nothing)[0] for _ in range(3)]
        self.claim("a refund of nothing makes none", refused == [200, 429, 429])
        first, second = (self.get("/hidden", {"x-user": "cyd", "x-hidden": "x"}) for _ in range(2))
        shown = self.get("/hidden", {"x-user": "dan"})
        self.claim("Envoy's own headers show no hidden limit, and others",
                   "x-ratelimit-limit" not in first[1] and shown[1].get("x-ratelimit-limit", "").startswith("2, 2;w=3600"))
        self.claim("a hidden limit denies", (first[0], second[0]) == (200, 429))
        for name, path, headers in [
            ("in a route's rate_limits", "/", {"x-plan": "3"}),
            ("in a route's filter settings", "/tenant", {"x-plan": "3"}),
            ("that is a constant", "/constant", {}),
        ]:
            tenant = {"x-tenant": name.replace(" ", "-"), **headers}
            answers = [self.get(path, tenant)[0] for _ in range(4)]
            self.claim(f"a limit {name} replaces the rule's 1/hour by 3/hour", answers == [200, 200, 200, 429])
        poor = [self.get("/tenant", {"x-tenant": "poor"})[0] for _ in range(2)]
        self.claim("a tenant without a limit of its own has the rule's", poor == [200, 429])
        self.claim("the access log names the rule that denied", eventually(
            lambda: {"status": 429, "denied_by": ["user"], "would_be_denied_by": None} in self.log()))
        self.claim("the access log names the shadow rule that would deny", eventually(
            lambda: {"status": 200, "denied_by": None, "would_be_denied_by": ["watched"]} in self.log()))

        stop(server)
        self.claim("Envoy allows requests while spillgate is stopped", self.get("/", user)[0] == 200)
        self.serve(["--redis", f"redis://127.0.0.1:{free_port()}"], self.grpc)
        strict = {"x-strict": "x"}
        self.claim("a rule with on_outage = deny denies in an outage",
                   eventually(lambda: self.get("/", strict)[1].get("x-spillgate-source") == "outage-policy"))
        self.claim("it denies with 429 and a problem", b"temporary-reduced-capacity" in self.get("/", strict)[2])
        return self.holds

    def serve(self, arguments, port=0):
        rules = os.path.join(self.folder, "limits.toml")
        with open(rules, "w") as file:
            documented = "\n".join(blocks("toml"))
            # A slow machine is no outage.
            documented = documented.replace("[server.grpc]\n", '[server.grpc]\ntimeout = "1s"\n')
            file.write(documented + MORE_RULES + '[store]\ntimeout = "1s"\n')
        command = [self.spillgate, "serve", "--config", rules, "--http", "off", "--resp", "off", "--admin", "off", "--grpc", f"127.0.0.1:{port}"]
        process = subprocess.Popen(command + arguments, stderr=subprocess.PIPE)
        self.processes.append(process)
        # A store that is down may be logged first; a server that logs nothing more is killed.
        late = threading.Timer(SECONDS_MAX, process.kill)
        late.start()
        log = ""
        for line in process.stderr:
            log += line.decode()
            found = re.search(r"gRPC on [^,]*:(\d+)", log)
            if found:
                late.cancel()
                self.grpc = int(found.group(1))
                return process
        raise SystemExit(f"spillgate did not start: {log}")

    def recipe(self):
        """Runs the whole file, with other addresses and Envoy's time-out for a machine under test."""
        with open(RECIPE) as file:
            recipe = file.read()
        self.claim("the page shows the recipe", recipe == blocks("yaml")[0])
        upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        for variant, deny, without in [("fail-open", "false", 200), ("fail-closed", "true", 503)]:
            self.port = free_port()
            text = recipe.replace("failure_mode_deny: false", f"failure_mode_deny: {deny}")
            text = text.replace("domain: web\n", "domain: web\n                      timeout: 2s\n")
            for port, ours in [(8000, self.port), (3000, upstream.server_port), (8081, self.grpc)]:
                text = text.replace(f"port_value: {port} ", f"port_value: {ours} ")
            envoy = self.start(text)
            user = {"x-user": variant}
            answers = [self.get("/", user)[0] for _ in range(3)]
            self.claim(f"the recipe, {variant}, denies the third call", answers == [200, 200, 429])
            self.processes[0].send_signal(signal.SIGSTOP)
            status = self.get("/", user)[0]
            self.processes[0].send_signal(signal.SIGCONT)
            self.claim(f"the recipe, {variant}, answers {without} while spillgate hangs", status == without)
            stop(envoy)

    def proxy(self):
        upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        recipe, addresses, per_route, tenants, access_log = blocks("yaml")
        filters = part(recipe, "http_filters").partition("  - name: envoy.filters.http.router")[0]
        limits = part(recipe, "rate_limits")
        filters = filters.replace("http_filters:\n", "http_filters:\n" + textwrap.indent(LOOKUP.lstrip(), "  "))
        # Envoy's default of 20 ms is too short for a machine under test.
        filters = filters.replace("      domain: web\n", "      domain: web\n      timeout: 2s\n")
        self.port = free_port()
        text = BOOTSTRAP.replace("@PORT@", str(self.port)).replace("@GRPC@", str(self.grpc))
        text = text.replace("@UPSTREAM@", str(upstream.server_port))
        text = text.replace("@FILTERS@", textwrap.indent(filters.rstrip(), " " * 10))
        text = text.replace("@RATE_LIMITS@", textwrap.indent(limits.rstrip(), " " * 18))
        text = text.replace("@TENANTS@", textwrap.indent(tenants.removeprefix("rate_limits:\n").rstrip(), " " * 18))
        text = text.replace("@ACCESS_LOG@", textwrap.indent(access_log.rstrip(), " " * 10))
        text = text.replace("@ROUTES@", "\n".join(route(*entry) for entry in PER_ROUTE.items()))
        text = text.replace("@ADDRESSES@", textwrap.indent(addresses.rstrip(), " " * 20))
        text = text.replace("@PER_ROUTE@", textwrap.indent(per_route.rstrip(), " " * 20))
        self.start(text)

    def start(self, text):
        """Starts Envoy with this configuration, and waits until it passes a request on."""
        bootstrap = os.path.join(self.folder, "envoy.yaml")
        with open(bootstrap, "w") as file:
            file.write(text)
        log = os.path.join(self.folder, "envoy.log")
        command = [self.envoy, "-c", bootstrap, "--concurrency", "1", "--log-path", log, "--use-dynamic-base-id", "--file-flush-interval-msec", "100"]
        with open(os.path.join(self.folder, "access.log"), "w") as written:
            envoy = subprocess.Popen(command, stdout=written, stderr=subprocess.DEVNULL)
        self.processes.append(envoy)
        if not eventually(lambda: self.get("/", {})[0] == 200):
            with open(log) as file:
                raise SystemExit("Envoy did not start: " + file.read()[-2000:])
        return envoy

    def get(self, path, headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS_MAX)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        except OSError:
            return 0, {}, b""
        finally:
            connection.close()

    def log(self):
        """The lines of the access log that are complete."""
        with open(os.path.join(self.folder, "access.log")) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def claim(self, claim, holds):
        print(f"{'holds' if holds else 'FAILS'}  {claim}", flush=True)
        self.holds = self.holds and holds

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"x" * (5000 if self.path == "/download" else 2)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-cost", str(COSTS.get(self.path, 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def route(prefix, descriptors):
    """A route with its own descriptors."""
    text = f"""
- match: {{ prefix: {prefix} }}
  route: {{ cluster: upstream }}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      rate_limits:
"""
    for key, options in descriptors:
        actions = f"actions: [{{ request_headers: {{ header_name: x-{key}, descriptor_key: {key} }} }}]"
        text += f"      - {{ {', '.join(filter(None, [actions, options]))} }}\n"
    return textwrap.indent(text.strip(), " " * 14)


def blocks(language):
    """The fenced blocks of the page on Envoy."""
    with open(DOCUMENT) as file:
        section = file.read()
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def part(yaml, name):
    """The lines of a key and of all below it, without their indentation."""
    found = re.search(rf"^( *){name}:\n(?:\1 .*\n)*", yaml, re.MULTILINE)
    return textwrap.dedent(found[0])


def eventually(holds):
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def stop(process):
    process.terminate()
    process.wait(SECONDS_MAX)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
