"""The processes of a run: the server, the application, a slow proxy, and one that keeps a core busy."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import generator


class Broken(Exception):
    """An application that does not serve."""


@contextlib.contextmanager
def busy_core(niceness=0):
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    with ended(subprocess.Popen([*nice(niceness), sys.executable, "-c", program])):
        yield


@contextlib.contextmanager
def server(binary, policy, process_of=None):
    """A server without a store outside of itself. Yields its URL."""
    command = [binary, "serve", "--config", policy, "--http", "127.0.0.1:0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([*command, "--grpc", "off", "--resp", "off", "--admin", "off"], stderr=log)
        with ended(process):
            deadline = time.monotonic() + 10
            while not (found := re.search(r"HTTP on (http://[^,\s]+)", read(log))):
                if time.monotonic() > deadline or process.poll() is not None:
                    sys.exit(f"burst: the server does not start: {read(log)}")
                time.sleep(0.02)
            if process_of is not None:
                process_of.append(process)
            yield found[1]


def read(file):
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def slow_proxy(url, milliseconds):
    port = url.rpartition(":")[2]
    command = [sys.executable, f"{os.path.dirname(os.path.abspath(__file__))}/slow_proxy.py", port, str(milliseconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with ended(process):
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"


@contextlib.contextmanager
def application(command, variables, ready="/counts", niceness=0):
    """A new process of an application that serves the socket named by LISTEN_FD. Yields its address and its process.

    `command` is a function of the descriptor. The application serves once it answers at the path `ready`.
    """
    with socket.socket() as listening, tempfile.TemporaryFile("w+") as log:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8192)
        fd = listening.fileno()
        process = subprocess.Popen(
            [*nice(niceness), *command(fd)],
            env={**os.environ, **variables, "LISTEN_FD": str(fd)},
            pass_fds=[fd],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        address = listening.getsockname()
        # Were it open here too, no connection would fail if the process ended.
        listening.close()
        with ended(process, whole_group=True):
            try:
                generator.get(address, ready, 20)
                yield address, process
            except OSError as error:
                raise Broken(f"{error}\n{read(log)[-2000:]}") from error


def nice(niceness):
    return ["nice", "-n", str(niceness)] if niceness else []


@contextlib.contextmanager
def ended(process, whole_group=False):
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            if whole_group:
                # gunicorn has workers.
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        process.wait()
