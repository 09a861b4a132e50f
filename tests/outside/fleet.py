#!/usr/bin/env python3
"""What idle fleets cost their Redis: real processes, and 1,000 connections that send only the heartbeat, beside a PING. Then the pages
of operators over two busy days of 100 instances.

Usage: fleet.py PATH-OF-THE-SPILLGATE-BINARY [SECONDS]
"""
import hashlib
import json
import os
import random
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    binary, seconds = sys.argv[1], float(sys.argv[2] if len(sys.argv) > 2 else 20)
    scratch = tempfile.mkdtemp()
    try:
        print("| idle instances | share of a core of Redis | µs an instance and second |\n|---|---|---|")
        shares = [idle_fleet(binary, scratch, instances, seconds) for instances in (10, 100, 300)]
        for instances, share in zip((10, 100, 300), shares):
            print(f"| {instances} | {share * 100:.2f} % | {share * 1e6 / instances:.0f} |")
        by = connections(scratch, seconds)
        print("\n| 1,000 connections, a call each a second | µs of Redis a call |\n|---|---|")
        for name, us in by.items():
            print(f"| {name} | {us:.1f} |")
        beat = by["heartbeat"] / by["PING"]
        print(f"\nA heartbeat costs {beat:.2f} times a PING.")
        share, slow, rate = changes(scratch)
        print(f"\n{rate:.0f} changes a second and 100 readers for 10 s take {share * 100:.1f} % of a core of Redis;"
              f" calls above 1 ms: {slow}.")
        slowest, size = pages(binary, scratch)
        failures = [
            (shares[2] > 0.03, "300 idle instances take more than 3 % of a core"),
            (shares[2] / 300 > 1.5 * shares[1] / 100, "the cost of an instance grows with their number"),
            (beat > 2, "a heartbeat costs more than twice a PING"),
            (slow > 0, "a call of a runtime change takes more than 1 ms"),
            (slowest > 0.5, "a page takes more than 500 ms"),
            (size > 110e6, "the record takes more than 110 MB"),
        ]
        wrong = [text for is_wrong, text in failures if is_wrong]
        sys.exit("; ".join(wrong) or 0)
    finally:
        shutil.rmtree(scratch)


class Redis:
    """A server on a port of its own."""

    def __init__(self, scratch):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", scratch]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        for _ in range(100):
            try:
                return self.connect().close()
            except OSError:
                time.sleep(0.05)
        sys.exit("redis-server does not start")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def cpu_seconds(self):
        """Returns the processor time of the server so far."""
        tasks = f"/proc/{self.process.pid}/task"
        ns = 0
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/schedstat") as file:
                ns += int(file.read().split()[0])
        return ns / 1e9

    def end(self):
        self.process.kill()
        self.process.wait()


def idle_fleet(binary, scratch, instances, seconds):
    redis = Redis(scratch)
    off = ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off", "--admin", "off"]
    command = [binary, "serve", "--redis", f"redis://127.0.0.1:{redis.port}", *off]
    processes = []
    try:
        # A start examines the store, so not all at once.
        for _ in range(instances):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            processes.append(subprocess.Popen(command, **quiet))
            time.sleep(0.02)
        with redis.connect() as connection:
            for _ in range(600):
                if ask(connection, b"ZCARD", b"sg1:{fleet:default}:i") == b":%d\r\n" % instances:
                    break
                time.sleep(0.1)
            else:
                sys.exit("not all instances report themselves")
        time.sleep(3)
        before, began = redis.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        return (redis.cpu_seconds() - before) / (time.monotonic() - began)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        redis.end()


def connections(scratch, seconds):
    """Returns the µs of Redis for each call, in turns of both kinds, of which the middle one counts."""
    redis = Redis(scratch)
    count = 1000
    path = os.path.join(root, "crates/spillgate-redis/src/lua/beat.lua")
    with open(path, "rb") as file:
        text = file.read()
    row = b"1 3:0123456789abcdef:0 0.1.0 1795572600000 0123456789abcdef 1795572600000 1000 10 250 - 7 web-1"
    keys = [b"sg1:{fleet:default}:" + part for part in (b"i", b"k:0", b"w", b"c")] + [b"sg1:{control}:epoch"]
    sockets = [redis.connect() for _ in range(count)]
    ask(sockets[0], b"SCRIPT", b"LOAD", text)
    sha = hashlib.sha1(text).hexdigest().encode()
    calls = {
        "PING": [words(b"PING")] * count,
        "heartbeat": [
            # As a busy instance does: each call has its row, and every third counts.
            words(b"EVALSHA", sha, b"5", *keys, b"%016x" % number, row, b"5", b"%d" % (number % 3 == 0)) for number in range(count)
        ],
    }
    measured = {name: [] for name in calls}
    try:
        for _ in range(3):
            for name, messages in calls.items():
                measured[name].append(us_of_each(redis, sockets, messages, seconds / 3))
    finally:
        for each in sockets:
            each.close()
        redis.end()
    return {name: sorted(us)[1] for name, us in measured.items()}


def changes(scratch):
    """Writes 8,600 entries in 10 s, read by 100 instances with each heartbeat, and counts the calls above 1 ms."""
    redis = Redis(scratch)
    with open(os.path.join(root, "crates/spillgate-redis/src/lua/control.lua"), "rb") as file:
        text = file.read()
    keys = [b"2", b"sg1:{fleet:default}:c", b"sg1:{fleet:default}:r"]

    def exchange(connection, seen, *entries):
        call = words(b"EVAL", text, *keys, seen, b"%d" % random.getrandbits(48), b"11000", b"1", b"%d" % (len(entries) // 2), *entries)
        connection.sendall(call)
        return read(connection.makefile("rb"))[1]

    writer, readers = redis.connect(), [(redis.connect(), [b""]) for _ in range(100)]
    try:
        ask(writer, b"CONFIG", b"SET", b"slowlog-log-slower-than", b"1000")
        before, began, written, looked, seen_by_writer = redis.cpu_seconds(), time.monotonic(), 0, 0, b""
        while (elapsed := time.monotonic() - began) < 10:
            if written < elapsed * 860:
                stamp = (int(time.time() * 1e6)).to_bytes(8, "big") + written.to_bytes(8, "big") + bytes(8)
                seen_by_writer = exchange(writer, seen_by_writer, written.to_bytes(16, "big"), stamp + os.urandom(180))
                written += 1
            if looked < elapsed * 100 / 0.85:
                connection, seen = readers[looked % 100]
                while (version := exchange(connection, seen[0])).endswith(b":"):
                    seen[0] = version
                seen[0] = version
                looked += 1
        share = (redis.cpu_seconds() - before) / (time.monotonic() - began)
        slow = int(ask(writer, b"SLOWLOG", b"LEN").strip(b":\r\n"))
        return share, slow, written / 10
    finally:
        for connection in [writer, *(connection for connection, _ in readers)]:
            connection.close()
        redis.end()


def pages(binary, scratch):
    """Times each page with 10,000 overrides, 64 rules, 100 instances, 48 hours of history and 10,000 denied subjects an hour."""
    redis = Redis(scratch)
    url = f"redis://127.0.0.1:{redis.port}"
    rules = os.path.join(scratch, "rules.toml")
    with open(rules, "w") as file:
        for rule in range(64):
            file.write(f'[[rule]]\nname = "r{rule}"\nmatch = {{ path = "/{rule}" }}\nkey = ["tenant"]\nlimits = ["1000000/day"]\n')
    processes = []
    try:
        began = time.monotonic()
        fill = ["cargo", "test", "--locked", "--workspace", "--all-features", "--lib", "two_days_of_a_busy_fleet", "--", "--ignored"]
        environment = os.environ | {"SPILLGATE_FILLED": url, "SPILLGATE_POLICY": rules}
        subprocess.run(fill, cwd=root, env=environment, check=True, stdout=subprocess.DEVNULL)
        print(f"\nTwo busy days were written in {time.monotonic() - began:.0f} s.")
        with socket.create_server(("127.0.0.1", 0)) as free:
            admin = free.getsockname()[1]
        off = ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off"]
        for instance in range(100):
            command = [binary, "serve", "--config", rules, "--redis", url, *off, "--admin", f"127.0.0.1:{admin}" if instance == 0 else "off"]
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.02)
        overrides = "".join(json.dumps({"rule": f"r{at % 64}", "subject": {"tenant": f"big-{at}"}, "limits": ["5/minute"]}) + "\n" for at in range(10_000))
        lines = os.path.join(scratch, "overrides.jsonl")
        with open(lines, "w") as file:
            file.write(overrides)
        began = time.monotonic()
        host = f"http://127.0.0.1:{admin}"
        subprocess.run([binary, "admin", "import", lines, "--url", host], check=True, stdout=subprocess.DEVNULL)
        print(f"10,000 overrides were imported in {time.monotonic() - began:.1f} s.\n")
        time.sleep(5)
        print("| page | first answer, ms | again, ms | KB |\n|---|---|---|---|")
        slowest = 0
        for path in (
            "fleet", "rules", "overrides", "status", "audit?n=1000", "audit?rule=r7", "history?range=24h", "history?range=48h&of=fleet", "history?range=48h&of=fleet&rule=r7",
            "denials?since=1h", "denials?rule=r7&attr.tenant=tenant-0-7&since=48h", "explain?attr.tenant=acme&attr.path=/7",
        ):
            first, _ = timed(host, path)
            again, answer = timed(host, path)
            slowest = max(slowest, first, again)
            print(f"| `{path}` | {first * 1e3:.0f} | {again * 1e3:.0f} | {len(answer) / 1e3:.0f} |")
        path, began, calls = "denials?like=TENANT-1500-&since=48h", time.monotonic(), []
        while True:
            seconds, answer = timed(host, path)
            calls.append(seconds)
            found = json.loads(answer)
            if found["complete"]:
                break
        whole = time.monotonic() - began
        again, answer = timed(host, path)
        found = json.loads(answer)
        listed = len(found["entries"]) + found["left_out"]
        print(f"| `{path}` | {calls[0] * 1e3:.0f}, complete after {whole * 1e3:.0f} | {again * 1e3:.0f} | {len(answer) / 1e3:.0f} |")
        if listed != 1_000:
            sys.exit(f"a search by part of a value finds {listed} subjects of 1,000")
        with redis.connect() as connection:
            sizes = {}
            file = connection.makefile("rb")
            connection.sendall(words(b"KEYS", b"sg1:{fleet:default}:*"))
            for key in read(file):
                connection.sendall(words(b"MEMORY", b"USAGE", key, b"SAMPLES", b"200"))
                part = key.split(b":")[3].decode()
                sizes[part] = sizes.get(part, 0) + int(read(file))
        print("\n| part of the record | MB in Redis |\n|---|---|")
        for part, size in sorted(sizes.items(), key=lambda it: -it[1]):
            print(f"| {PARTS.get(part, part)} | {size / 1e6:.1f} |")
        return max(slowest, again), sum(sizes.values())
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        redis.end()


PARTS = {"i": "live instances", "k": "kinds of instances", "w": "rows of instances", "c": "changes", "r": "revisions of changes", "a": "audit", "e": "events", "h": "history", "d": "denials"}


def timed(host, path):
    """Returns how long a page takes, and its answer."""
    began = time.monotonic()
    with urllib.request.urlopen(f"{host}/admin/v1/{path}", timeout=30) as answer:
        body = answer.read()
    return time.monotonic() - began, body


def read(file):
    """Reads one reply."""
    kind, rest = (line := file.readline())[:1], line[1:].strip()
    if kind == b"-":
        sys.exit(f"Redis answered {line}")
    if kind == b"*":
        return [read(file) for _ in range(int(rest))]
    if kind == b"$":
        return file.read(int(rest) + 2)[:-2]
    return rest


def us_of_each(redis, sockets, messages, seconds):
    """Sends each message once a second over its own connection, evenly spread, and reads all replies."""
    waiting = selectors.DefaultSelector()
    for each in sockets:
        each.setblocking(False)
        waiting.register(each, selectors.EVENT_READ)
    sent, began, before = 0, time.monotonic(), redis.cpu_seconds()
    while (elapsed := time.monotonic() - began) < seconds:
        while sent < elapsed * len(sockets):
            sockets[sent % len(sockets)].sendall(messages[sent % len(sockets)])
            sent += 1
        for key, _ in waiting.select(0.001):
            reply = key.fileobj.recv(4096)
            if reply.startswith(b"-"):
                sys.exit(f"Redis answered {reply}")
    time.sleep(0.2)
    for key, _ in waiting.select(0):
        key.fileobj.recv(65536)
    waiting.close()
    return (redis.cpu_seconds() - before) * 1e6 / sent


def words(*parts):
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def ask(connection, *parts):
    connection.sendall(words(*parts))
    return connection.recv(65536)


main()
