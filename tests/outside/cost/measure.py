"""Measures what a request of a small service costs with each limiter, and prints a table.

Usage: measure.py PATH-OF-THE-SPILLGATE-BINARY SERVICE... (cost.sh starts it, and installs what it needs.)

Each round measures every row once, and a cell is the median of the rounds, so that a busy moment of the machine changes
no row alone. All limiters count in one Redis, Spillgate through its server.
"""

import contextlib
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../burst")

from processes import application, ended, server

ROUNDS = int(os.environ.get("ROUNDS", "7"))
SECONDS = 1.5
# A runtime with a compiler has then compiled what each request needs.
WARM_UP_SECONDS = 10
AT_ONCE = (1, 50)

GUNICORN = "-m gunicorn --worker-class gthread --threads 64 --backlog 8192 --log-level critical"
COMMANDS = {
    "express": lambda fd: ["node", f"{os.environ['NODE_APPS']}/express.mjs"],
    "fastapi": lambda fd: [os.environ["PYTHON"], f"{HERE}/fastapi_app.py"],
    "flask": lambda fd: [
        os.environ["PYTHON"],
        *GUNICORN.split(),
        "--chdir",
        HERE,
        "--bind",
        f"fd://{fd}",
        "flask_app:app",
    ],
    "net/http": lambda fd: [os.environ["GO_APP"]],
}
LIMITERS = {
    "express": ("none", "Spillgate", "express-rate-limit"),
    "fastapi": ("none", "Spillgate", "slowapi"),
    "flask": ("none", "Spillgate", "flask-limiter"),
    "net/http": ("none", "Spillgate"),
}
CLOCK = os.sysconf("SC_CLK_TCK")


def main():
    binary, *services = sys.argv[1:]
    with contextlib.ExitStack() as stack:
        redis_url = stack.enter_context(redis())
        os.environ["SPILLGATE_STORE__URL"] = redis_url
        url = stack.enter_context(server(binary, f"{HERE}/policy.toml"))
        del os.environ["SPILLGATE_STORE__URL"]
        variables = {"SPILLGATE_URL": url, "REDIS_URL": redis_url, "PYTHONPATH": os.environ.get("PYTHON_CLIENT", "")}
        rows = {
            (service, limiter): stack.enter_context(
                application(COMMANDS[service], {**variables, "LIMITER": limiter}, ready="/")
            )
            for service in services
            for limiter in LIMITERS[service]
        }
        for address, process in rows.values():
            measure(address, process, max(AT_ONCE), WARM_UP_SECONDS)
        measured = {}
        for _ in range(ROUNDS):
            for row, (address, process) in rows.items():
                for at_once in AT_ONCE:
                    measured.setdefault((row, at_once), []).append(measure(address, process, at_once, SECONDS))
    report(rows, measured)


def measure(address, process, at_once, seconds):
    """Requests a second, and the microseconds of CPU time that the service took for each."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(at_once):
            connection = stack.enter_context(socket.create_connection(address, 10))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, bytearray())
        used, start = cpu_seconds(process), time.monotonic()
        for key in selector.get_map().values():
            key.fileobj.sendall(REQUEST)
        answered = 0
        while (took := time.monotonic() - start) < seconds:
            for key, _ in selector.select(1):
                received = key.data
                part = key.fileobj.recv(65536)
                if not part:
                    raise ConnectionError(f"the service closed a connection after {bytes(received)!r}")
                received += part
                if received.endswith(b"\r\n\r\nok"):
                    if not received.startswith(b"HTTP/1.1 200"):
                        raise ConnectionError(f"the service answered {bytes(received)!r}")
                    answered += 1
                    received.clear()
                    key.fileobj.sendall(REQUEST)
        return answered / took, 1e6 * (cpu_seconds(process) - used) / max(answered, 1)


def cpu_seconds(process):
    """The CPU time of the service with its workers: those of its session."""
    ticks = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            if int(fields[3]) == process.pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / CLOCK


def report(rows, measured):
    def median(row, at_once, figure):
        return statistics.median(figures[figure] for figures in measured[row, at_once])

    print("| service | limiter | requests/s, one at a time | CPU, µs | requests/s, 50 at once | CPU, µs |")
    print("|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: median(row, 50, 0)):
        cells = [f"{median(row, at_once, figure):,.0f}" for at_once in AT_ONCE for figure in (0, 1)]
        print(f"| {row[0]} | {row[1]} | {' | '.join(cells)} |")


@contextlib.contextmanager
def redis():
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder]
        with ended(subprocess.Popen(command, stdout=subprocess.DEVNULL)):
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}"


REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

if __name__ == "__main__":
    main()
