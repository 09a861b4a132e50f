#!/usr/bin/env python3
"""Measures normal traffic while the service is attacked, and compares it with the same traffic without an attack.

Usage: attacks.py PATH-OF-THE-SPILLGATE-BINARY [--seconds N] [ATTACK...]

Normal traffic is 5,000 checks a second over at most 100 HTTP connections, made by `spillgate bench`. A check counts
from the time it was due. An attack holds if every check is answered, and p99 stays within three times the control's or
five milliseconds: three times the quarter of a millisecond that an idle host needs would harm no caller.

Attacks:
  grpc      4 connections, each with 250 unfinished 4 MiB messages on the health and rate-limit services
  sink      no process reads the log, and the policy is reloaded ten times a second
  scrapes   32 connections read /metrics of 2,000 rules without a pause
  slow      500 connections on each listener that send a byte a second
  batches   60 connections that send batches over a thousand limits and read no answer; at most 400 MiB are resident

One more attack has no normal traffic beside it. It needs redis-server:
  held      1,600 connections that send batches of 1,000 checks under 3 rules of 2 limits on Redis, half of which never
            read. It holds if the memory is back, but for 64 MiB, ten seconds after all have left
"""

import fcntl
import json
import multiprocessing
import os
import re
import resource
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

RATE = 5000
CONNECTIONS = 100
RULES = 2000
FACTOR = 3
HARMLESS_MS = 5
# The budget of a listener, eight answers beyond it, and what the service has without an attack.
RESIDENT_MIB = 400


def main():
    arguments = sys.argv[1:]
    seconds = 600
    if "--seconds" in arguments:
        at = arguments.index("--seconds")
        seconds = int(arguments[at + 1])
        del arguments[at : at + 2]
    if not arguments:
        sys.exit(__doc__)
    binary, chosen = arguments[0], arguments[1:] or [*ATTACKS, "held"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    print("| traffic beside | answered | not answered | p50, ms | p99, ms | p99 to control | resident, MiB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    control = measure(binary, "no attack", None, seconds, None)
    held = True
    for name in [name for name in chosen if name in ATTACKS]:
        held &= measure(binary, name, ATTACKS[name], seconds, control)["holds"]
    if "held" in chosen:
        held &= held_after(binary, min(seconds, 60))
    sys.exit(0 if held else "attacks: one did not hold")


def measure(binary, name, attack, seconds, control):
    with tempfile.TemporaryDirectory() as folder, Service(binary, folder) as service:
        ends = multiprocessing.Event()
        attackers = attack(service, ends) if attack else []
        for attacker in attackers:
            attacker.start()
        # The attack runs at full strength before the traffic is measured.
        time.sleep(3)
        try:
            report = traffic(binary, service.addresses["HTTP"], seconds)
            resident = service.resident_mib()
        finally:
            ends.set()
            for attacker in attackers:
                attacker.join(10)
                if attacker.is_alive() and hasattr(attacker, "kill"):
                    attacker.kill()
    ours = report["contenders"][0]
    lost = ours["errors"] + ours["unsent"]
    p50, p99 = (ours["latency"][field] / 1e6 for field in ("p50_ns", "p99_ns"))
    to_control = p99 / control["p99"] if control else 1.0
    answered = ours["allowed"] + ours["denied"]
    print(
        f"| {name} | {answered} | {lost} | {p50:.2f} | {p99:.2f} | {to_control:.2f} | {resident:.0f} |",
        flush=True,
    )
    is_small = name != "batches" or resident <= RESIDENT_MIB
    is_quick = to_control <= FACTOR or p99 <= HARMLESS_MS
    return {"p99": p99, "holds": is_quick and lost == 0 and is_small}


def traffic(binary, address, seconds):
    command = [binary, "bench", "steady", "--url", f"http://{address}", "--rate", str(RATE)]
    command += ["--callers", str(CONNECTIONS), "--duration", f"{seconds}s"]
    command += ["--by", "user", "--timeout", "5s", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


class Service:
    """A server with all four listeners, 2,000 rules, and a log that is read until `stall`."""

    def __init__(self, binary, folder):
        self.binary = binary
        self.policy = os.path.join(folder, "limits.toml")
        self.write_policy(0)

    def write_policy(self, version):
        rules = "".join(
            f'[[rule]]\nname = "rule-{number}"\nmatch = {{ route = "/{number}" }}\nkey = ["user"]\nlimits = ["100/second"]\n\n'
            for number in range(RULES - 1)
        )
        last = f'[[rule]]\nname = "all"\nkey = ["user"]\nlimits = ["{1000 + version % 2}/second"]\n'
        limits = ", ".join(f'"{number}000/{number}d"' for number in range(1, 65))
        wide = "".join(
            f'[[rule]]\nname = "wide-{number}"\ndomain = "wide"\nkey = ["user"]\nlimits = [{limits}]\n\n'
            for number in range(16)
        )
        with open(self.policy + ".new", "w") as file:
            file.write(rules + wide + last)
        os.replace(self.policy + ".new", self.policy)

    def __enter__(self):
        command = [self.binary, "serve", "--config", self.policy]
        for listener in ("http", "grpc", "resp", "admin"):
            command += [f"--{listener}", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        # The dashboard's address and findings about the rules come before the line with all addresses.
        line = next((line for line in map(bytes.decode, self.process.stderr) if "HTTP on" in line), "")
        found = {
            name: re.search(name + r" on (?:http://)?([0-9.]+:[0-9]+)", line)
            for name in ("HTTP", "gRPC", "RESP", "admin")
        }
        self.addresses = {name: match.group(1) for name, match in found.items()}
        self.read_log = True
        threading.Thread(target=self.drain, daemon=True).start()
        return self

    def drain(self):
        descriptor = self.process.stderr.fileno()
        while self.read_log and os.read(descriptor, 65536):
            pass

    def stall_log(self):
        self.read_log = False
        fcntl.fcntl(self.process.stderr, fcntl.F_SETPIPE_SZ, 4096)

    def resident_mib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise SystemExit("attacks: the service does not stop")


def connect(address):
    host, port = address.split(":")
    client = socket.create_connection((host, int(port)), timeout=10)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


# --- gRPC ---


def grpc(service, ends):
    paths = ["/grpc.health.v1.Health/Check", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"]
    address = service.addresses["gRPC"]
    return [process(hold_messages, address, paths[number % 2], ends) for number in range(4)]


def hold_messages(address, path, ends):
    """Opens 250 streams, sends as much of a 4 MiB message on each as the windows allow, and never ends one."""
    while not ends.is_set():
        try:
            Messages(address, path).hold(ends)
        except OSError:
            pass
        ends.wait(0.2)


class Messages:
    """One HTTP/2 connection with unfinished messages."""

    STREAMS = 250

    def __init__(self, address, path):
        self.client = connect(address)
        self.client.settimeout(0.05)
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", address)]
        fields += [("content-type", "application/grpc"), ("te", "trailers")]
        self.head = b"".join(literal(name) + literal(value, is_value=True) for name, value in fields)
        self.received = b""
        self.initial = self.window = 65535
        self.windows = {}
        self.opened = 0
        self.client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))

    def hold(self, ends):
        while not ends.is_set():
            self.receive()
            # A stream that the service ends is followed by another.
            while len(self.windows) < self.STREAMS:
                stream = 1 + 2 * self.opened
                self.opened += 1
                self.windows[stream] = self.initial
                self.client.sendall(frame(1, 4, stream, self.head))
                self.send(stream, b"\0" + struct.pack(">I", 4 << 20))
            for stream in list(self.windows):
                self.send(stream, bytes(16000))

    def send(self, stream, data):
        data = data[: max(0, min(self.window, self.windows[stream]))]
        if data:
            self.client.sendall(frame(0, 0, stream, data))
            self.window -= len(data)
            self.windows[stream] -= len(data)

    def receive(self):
        try:
            data = self.client.recv(65536)
            if not data:
                raise OSError("closed")
            self.received += data
        except TimeoutError:
            return
        while len(self.received) >= 9:
            length = int.from_bytes(self.received[:3], "big")
            if len(self.received) < 9 + length:
                return
            kind, flags = self.received[3], self.received[4]
            stream = int.from_bytes(self.received[5:9], "big")
            payload, self.received = self.received[9 : 9 + length], self.received[9 + length :]
            if kind == 8 and stream == 0:
                self.window += int.from_bytes(payload, "big")
            elif kind == 8 and stream in self.windows:
                self.windows[stream] += int.from_bytes(payload, "big")
            elif kind == 4 and not flags & 1:
                self.take_settings(payload)
            elif kind == 3 or kind == 1 and flags & 1:
                self.windows.pop(stream, None)
            elif kind == 7:
                raise OSError("the service closes the connection")

    def take_settings(self, payload):
        for at in range(0, len(payload), 6):
            name, value = struct.unpack(">HI", payload[at : at + 6])
            if name == 4:
                for stream in self.windows:
                    self.windows[stream] += value - self.initial
                self.initial = value
        self.client.sendall(frame(4, 1, 0, b""))


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(text, is_value=False):
    """A string of a header field that is not indexed; a name comes with the mark of such a field."""
    data = text.encode()
    assert len(data) < 127
    return (b"" if is_value else b"\0") + bytes([len(data)]) + data


# --- The log ---


def sink(service, ends):
    service.stall_log()
    return [threading.Thread(target=reload_often, args=(service, ends))]


def reload_often(service, ends):
    version = 0
    while not ends.wait(0.1):
        version += 1
        service.write_policy(version)


# --- Scrapes ---


def scrapes(service, ends):
    address = service.addresses["admin"]
    return [process(scrape, address, 16, ends) for _ in range(2)]


def scrape(address, connections, ends):
    request = f"GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n".encode()
    watched = selectors.DefaultSelector()

    def open_one():
        client = connect(address)
        client.sendall(request)
        watched.register(client, selectors.EVENT_READ, {"left": None, "head": b""})

    for _ in range(connections):
        open_one()
    while not ends.is_set():
        for key, _ in watched.select(0.5):
            client, state = key.fileobj, key.data
            try:
                data = client.recv(1 << 18)
                if not data:
                    raise OSError
                if take_answer(state, data):
                    client.sendall(request)
            except OSError:
                watched.unregister(client)
                client.close()
                open_one()


def take_answer(state, data):
    """Counts the bytes of an answer; returns whether it is complete."""
    if state["left"] is None:
        state["head"] += data
        head, found, rest = state["head"].partition(b"\r\n\r\n")
        if not found:
            return False
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        state["left"] = int(length.group(1)) if length else 0
        data = rest
    state["left"] -= len(data)
    if state["left"] > 0:
        return False
    state.update(left=None, head=b"")
    return True


# --- Slow connections ---


def slow(service, ends):
    return [process(drip, address, ends) for address in service.addresses.values()]


def drip(address, ends):
    """Keeps 500 connections open that send one byte a second of something that never ends."""
    clients = [None] * 500
    while not ends.is_set():
        for number, client in enumerate(clients):
            ends.wait(1 / len(clients))
            try:
                if client is None:
                    clients[number] = client = connect(address)
                client.send(b"P")
            except OSError:
                if client is not None:
                    client.close()
                clients[number] = None


# --- Batches ---


def batches(service, ends):
    return [process(send_batches, service.addresses["HTTP"], ends)]


def send_batches(address, ends):
    """Keeps 60 connections open, each with a batch whose answer of some 10 MB is not read."""
    check = '{"domain":"wide","attributes":{"user":"u1"}}'
    body = f"[{','.join([check] * 50)}]"
    request = f"POST /v1/check/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    while not ends.is_set():
        clients = []
        for _ in range(60):
            try:
                clients.append(connect(address))
                clients[-1].sendall(request.encode())
            except OSError:
                pass
        ends.wait(15)
        for client in clients:
            client.close()


# --- memory of batches ---


def held_after(binary, seconds):
    with tempfile.TemporaryDirectory() as folder:
        socket_path = os.path.join(folder, "redis.sock")
        command = ["redis-server", "--port", "0", "--unixsocket", socket_path, "--save", "", "--appendonly", "no"]
        redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with BatchService(binary, folder, socket_path) as service:
                before = service.resident_mib()
                peak = keep_sending_batches(service, seconds)
                left = time.monotonic()
                while (still := service.resident_mib() - before) > 64 and time.monotonic() < left + 10:
                    time.sleep(0.1)
                after = time.monotonic() - left
        finally:
            redis.terminate()
            redis.wait(10)
    print(f"held: {before:.0f} MiB before, {peak:.0f} at the peak, {still:.0f} more {after:.1f} s after all had left")
    return still <= 64


class BatchService(Service):
    def __init__(self, binary, folder, redis):
        self.redis = redis
        super().__init__(binary, folder)

    def write_policy(self, version):
        rules = "".join(
            f'[[rule]]\nname = "rule-{number}"\nkey = ["user"]\nlimits = ["{1000 + number}/minute", "99999/hour"]\n'
            for number in range(3)
        )
        with open(self.policy, "w") as file:
            file.write(f'[store]\nurl = "unix://{self.redis}"\n{rules}')


def keep_sending_batches(service, seconds):
    """Sends batches on 1,600 connections, of which every second reads its answers. Returns the peak of the memory."""

    def request(caller):
        body = json.dumps([{"attributes": {"user": f"{caller}-{user}"}} for user in range(1000)]).encode()
        head = f"POST /v1/check/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    requests = [request(caller) for caller in range(16)]
    clients, peak, ends, turn = {}, 0, time.monotonic() + seconds, 0
    with selectors.DefaultSelector() as selector:
        while time.monotonic() < ends:
            while len(clients) < 1600:
                turn += 1
                client = connect(service.addresses["HTTP"])
                client.setblocking(False)
                clients[client] = [requests[turn % 16], turn % 2 == 0]
                selector.register(client, selectors.EVENT_WRITE)
            peak = max(peak, service.resident_mib())
            for key, _ in selector.select(0.1):
                client, (unsent, reads) = key.fileobj, clients[key.fileobj]
                try:
                    if unsent:
                        clients[client][0] = unsent[client.send(unsent) :]
                    elif not client.recv(1 << 18):
                        raise ConnectionError
                    if not clients[client][0] and key.events == selectors.EVENT_WRITE:
                        # The answer is read to its end, which a client that sends no more gets by the close.
                        if reads:
                            client.shutdown(socket.SHUT_WR)
                            selector.modify(client, selectors.EVENT_READ)
                        else:
                            selector.unregister(client)
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(client)
                    client.close()
                    del clients[client]
        for client in clients:
            client.close()
    return peak


def process(target, *arguments):
    return multiprocessing.Process(target=run_idly, args=(target, arguments), daemon=True)


def run_idly(target, arguments):
    """Real attackers have machines of their own: here they get the time that the service and its good clients leave."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    target(*arguments)


ATTACKS = {"grpc": grpc, "sink": sink, "scrapes": scrapes, "slow": slow, "batches": batches}

if __name__ == "__main__":
    main()
