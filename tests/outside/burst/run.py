"""Runs bursts against applications of each framework, prints tables, and fails unless each cell is as documented.

Usage: run.py PATH-OF-THE-SPILLGATE-BINARY [--short] FRAMEWORK... (burst.sh starts it, and installs what it needs.)

Environment: NODE_APPS for the applications on Node, PYTHON and PYTHON_CLIENT for those on Python, GO_APP for net/http.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time

import generator
from processes import Broken, application, busy_core, server, slow_proxy

LIMIT = 150
# Of a server that gets no CPU time, on_failure is right to decide. So where the machine may have other work, or where the
# server has little time left, the applications have a lower priority.
NICE = 10
TIMEOUT_MS = 300
HERE = os.path.dirname(os.path.abspath(__file__))
POLICY = f"{HERE}/policy.toml"


@dataclasses.dataclass
class Extent:
    sizes: tuple = (300, 1000, 2000, 5000)
    cpu_ms: tuple = (0, 1, 4)
    runs: int = 3
    # Kinds of requests of which every tenth may be one.
    kinds: tuple = ("malformed", "long")
    faults: bool = True
    # That of the applications, and of the process which keeps a core busy.
    niceness: int = 0


SHORT = Extent(sizes=(300, 2000), cpu_ms=(1,), runs=1, kinds=(), faults=False, niceness=NICE)

# A process which runs the application, by framework.
GUNICORN = "-m gunicorn --worker-class gthread --threads 64 --worker-connections 8192 --backlog 8192"
# Its workers report by a thread that waits for the interpreter as well.
GUNICORN += " --timeout 120 --log-level critical"
COMMANDS = {
    "express": lambda fd: ["node", f"{os.environ['NODE_APPS']}/express.mjs"],
    "fastify": lambda fd: ["node", f"{os.environ['NODE_APPS']}/fastify.mjs"],
    "hono": lambda fd: ["node", f"{os.environ['NODE_APPS']}/hono.mjs"],
    "fastapi": lambda fd: [os.environ["PYTHON"], f"{HERE}/python/fastapi_app.py"],
    "starlette": lambda fd: [os.environ["PYTHON"], f"{HERE}/python/starlette_app.py"],
    "flask": lambda fd: [os.environ["PYTHON"], f"{HERE}/python/flask_app.py"],
    "flask-gunicorn": lambda fd: [
        os.environ["PYTHON"], *GUNICORN.split(), "--chdir", f"{HERE}/python", "--bind", f"fd://{fd}", "flask_app:app",
    ],
    "django": lambda fd: [os.environ["PYTHON"], f"{HERE}/python/django_app.py"],
    "net/http": lambda fd: [os.environ["GO_APP"]],
}  # fmt: skip


def main():
    binary, *arguments = sys.argv[1:]
    extent = Extent()
    if "--short" in arguments:
        arguments.remove("--short")
        extent = SHORT
    frameworks = arguments or list(COMMANDS)
    unknown = [name for name in frameworks if name not in COMMANDS]
    if unknown:
        sys.exit(f"burst: expected frameworks among {', '.join(COMMANDS)}, got {', '.join(unknown)}")
    # Ends the processes that this one started, also when it is told to end itself.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)

    with server(binary, POLICY) as url, busy_core(extent.niceness):
        held = bursts(url, frameworks, extent)
        for kind in extent.kinds:
            held &= mixed_bursts(url, frameworks, kind, extent.runs)
    if extent.faults:
        with busy_core(NICE):
            held &= faults(binary, frameworks)
    sys.exit(0 if held else "burst: the cells marked by * are not as documented")


def bursts(url, frameworks, extent):
    print(f"A cell has the admitted requests, of which {LIMIT} have room, and those decided without the server.")
    held = True
    for cpu_ms in extent.cpu_ms:
        heading(f"{cpu_ms} ms of CPU time for each request", [f"{size:,}" for size in extent.sizes])
        for framework in frameworks:
            cells = [
                one_of([exact(framework, url, size, cpu_ms, niceness=extent.niceness) for _ in range(extent.runs)])
                for size in extent.sizes
            ]
            held &= row(framework, cells)
    return held


def mixed_bursts(url, frameworks, kind, runs):
    """Every tenth request is one that the server refuses or whose value the client shortens; the others are counted."""
    held = True
    sizes = (300, 2000)
    heading(f"every tenth request {kind}, 1 ms; both figures over the others", [f"{size:,}" for size in sizes])
    for framework in frameworks:
        cells = [one_of([exact(framework, url, size, 1, kind) for _ in range(runs)]) for size in sizes]
        held &= row(framework, cells)
    return held


def exact(framework, url, size, cpu_ms, kind="plain", niceness=0):
    try:
        with application_of(framework, url, "allow", niceness) as (address, _):
            counts, observed = one_burst(address, size, cpu_ms, kind)
    except Broken as error:
        print(f"burst: {framework}: {error}", file=sys.stderr)
        return "broken", False
    holds = (counts.admitted, counts.by_client, counts.denied) == (LIMIT, 0, wellformed(size, kind) - LIMIT)
    # Malformed requests are decided by the client, each of them.
    by_hook = observed.get("client", 0)
    holds &= by_hook <= size - wellformed(size, kind) and not counts.errors
    if not holds:
        print(f"burst: {framework}, {size}, {cpu_ms} ms, {kind}: {counts}, by the hook: {observed}", file=sys.stderr)
    text = f"{counts.admitted}/{max(counts.by_client, by_hook if kind == 'plain' else 0)}"
    return (text + errors_of(counts), holds)


def faults(binary, frameworks):
    print("\nFaults, 300 requests without CPU time. A cell has admitted/without the server, and p50/max in ms.")
    held = True
    columns = ["healthy", "killed", "hung", "slow by 600 ms", "slow by 200 ms"]
    for on_failure in ("allow", "deny"):
        heading(f"on_failure = {on_failure}", columns)
        for framework in frameworks:
            # How long the framework's own queue takes.
            healthy, healthy_max = fault_cell(binary, framework, None, on_failure, LIMIT, None)
            # A call waits for its time-out, and behind calls that wait for theirs.
            bound = 2 * TIMEOUT_MS + 3 * healthy_max
            cells = [healthy]
            for fault in (kill, hang, slow(600)):
                cells.append(fault_cell(binary, framework, fault, on_failure, None, bound)[0])
            cells.append(fault_cell(binary, framework, slow(200), on_failure, LIMIT, None)[0])
            held &= row(framework, cells)
    return held


def fault_cell(binary, framework, fault, on_failure, admitted, bound_ms):
    """The cell for one fault, and its longest time. Without a count to be admitted, on_failure decides over all."""
    size = 300
    with contextlib.ExitStack() as stack:
        process_of = []
        url = stack.enter_context(server(binary, POLICY, process_of))
        if isinstance(fault, int):
            url = stack.enter_context(slow_proxy(url, fault))
        address, _ = stack.enter_context(application_of(framework, url, on_failure, NICE))
        # The client has a connection when the fault comes.
        generator.burst(address, [("plain", f"/work?run={new_run()}&kind=plain")])
        if callable(fault):
            fault(process_of[0])
        counts, _ = one_burst(address, size, 0, "plain")
    if admitted is None:
        expected = (size, size) if on_failure == "allow" else (0, size)
    else:
        expected = (admitted, 0)
    p50, longest = (1000 * counts.seconds[at] for at in (size // 2, -1))
    holds = (counts.admitted, counts.by_client) == expected and not counts.errors
    text = f"{counts.admitted}/{counts.by_client} {p50:.0f}/{longest:.0f}{errors_of(counts)}"
    if bound_ms is not None and longest > bound_ms:
        holds, text = False, f"{text} (bound {bound_ms:.0f})"
    return (text, holds), longest


def application_of(framework, url, on_failure, niceness):
    path = os.pathsep.join([f"{HERE}/python", os.environ.get("PYTHON_CLIENT", "")])
    variables = {"SPILLGATE_URL": url, "ON_FAILURE": on_failure, "PYTHONPATH": path}
    return application(COMMANDS[framework], variables, niceness=niceness)


def kill(process):
    process.kill()
    process.wait()


def hang(process):
    process.send_signal(signal.SIGSTOP)
    # Until then a thread may still answer.
    while any(state_of(f"/proc/{process.pid}/task/{task}/stat") != "T" for task in os.listdir(f"/proc/{process.pid}/task")):
        time.sleep(0.001)


def state_of(path):
    with open(path) as file:
        return file.read().rpartition(") ")[2][0]


def slow(milliseconds):
    return milliseconds


def one_burst(address, size, cpu_ms, kind):
    run = new_run()
    targets = []
    for index in range(size):
        its_kind = kind if index % 10 == 9 else "plain"
        targets.append((its_kind, f"/work?run={run}&kind={its_kind}&cpu={cpu_ms * 1000}"))
    counts = generator.count(generator.burst(address, targets))
    return counts, json.loads(generator.get(address, "/counts", 60) or b"{}") or {}


def wellformed(size, kind):
    return size if kind == "plain" else size - size // 10


def new_run():
    return f"{os.getpid()}-{time.monotonic_ns()}"


def heading(title, columns):
    print(f"\n| {title} | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}", flush=True)


def row(framework, cells):
    print(f"| {framework} | {' | '.join(text + ('' if holds else ' *') for text, holds in cells)} |", flush=True)
    return all(holds for _, holds in cells)


def one_of(runs):
    """One cell of several runs: each run, unless all are alike."""
    texts = [text for text, _ in runs]
    return (texts[0] if len(set(texts)) == 1 else ", ".join(texts)), all(holds for _, holds in runs)


def errors_of(counts):
    return "".join(f", {count}x {error}" for error, count in sorted(counts.errors.items(), key=str))


if __name__ == "__main__":
    main()
