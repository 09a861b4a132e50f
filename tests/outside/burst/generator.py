"""Sends many requests at once: opens all connections first, then writes one request to each."""

import collections
import dataclasses
import errno
import selectors
import socket
import time

OPENING_SECONDS = 30
ANSWERING_SECONDS = 120
# A kernel without room for another connection drops its first packet, and the next try is a second later.
RETRY_SECONDS = 0.2


@dataclasses.dataclass
class Answer:
    kind: str
    # The status, or a word for an answer that is none.
    status: int | str
    # The error by which the client decided, if it did.
    error: str | None
    seconds: float


def burst(address, targets):
    """The answers to one request for each target; a target is a pair of kind and path."""
    connections = open_all(address, len(targets))
    try:
        return send_all(connections, targets)
    finally:
        for connection in connections:
            connection.close()


def open_all(address, count):
    deadline = time.monotonic() + OPENING_SECONDS
    connections = [connecting(address) for _ in range(count)]
    selector = selectors.DefaultSelector()
    for index, connection in enumerate(connections):
        selector.register(connection, selectors.EVENT_WRITE, index)
    opened = 0
    while opened < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{opened} of {count} connections were opened within {OPENING_SECONDS} s")
        for key, _ in selector.select(RETRY_SECONDS):
            selector.unregister(key.fileobj)
            if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                opened += 1
            else:
                key.fileobj.close()
                connections[key.data] = connecting(address)
                selector.register(connections[key.data], selectors.EVENT_WRITE, key.data)
    return connections


def connecting(address):
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    error = connection.connect_ex(address)
    if error not in (0, errno.EINPROGRESS):
        raise OSError(error, "no connection to the application")
    return connection


def send_all(connections, targets):
    selector = selectors.DefaultSelector()
    requests = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode() for _, path in targets]
    received = [bytearray() for _ in targets]
    started = []
    for index, (connection, request) in enumerate(zip(connections, requests)):
        started.append(time.monotonic())
        connection.send(request)
        selector.register(connection, selectors.EVENT_READ, index)
    answers = []
    deadline = time.monotonic() + ANSWERING_SECONDS

    def finish(connection, index, problem=None):
        selector.unregister(connection)
        # Servers wait for it before they serve others.
        connection.close()
        answers.append(answer_of(targets[index][0], received[index], time.monotonic() - started[index], problem))

    while len(answers) < len(targets):
        if time.monotonic() > deadline:
            for key in list(selector.get_map().values()):
                finish(key.fileobj, key.data, "no answer")
        for key, _ in selector.select(1):
            try:
                part = key.fileobj.recv(65536)
            except OSError as error:
                finish(key.fileobj, key.data, errno.errorcode.get(error.errno, str(error)))
                continue
            received[key.data] += part
            if not part:
                finish(key.fileobj, key.data)
    return answers


def answer_of(kind, received, seconds, problem):
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = problem or (int(words[1]) if len(words) > 2 else "no answer")
    _, by_client, error = body.decode(errors="replace").partition("source=client")
    return Answer(kind, status, error.strip() if by_client else None, seconds)


def get(address, path, seconds):
    """The body of one response. It waits for the application to start."""
    with socket.create_connection(address, seconds) as connection:
        # Version 1.0 has no chunks.
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        received = b""
        while part := connection.recv(65536):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.split(b" ", 2)[1:2] == [b"200"]:
        raise ConnectionError(f"GET {path} got {head[:100]!r}")
    return body


@dataclasses.dataclass
class Counts:
    """What became of the well-formed requests of a burst; of the others only those that got no answer of a limiter."""

    admitted: int
    denied: int
    unavailable: int
    by_client: int
    reasons: collections.Counter
    errors: collections.Counter
    seconds: list = dataclasses.field(repr=False)


def count(answers):
    good = [answer for answer in answers if answer.kind == "plain"]
    return Counts(
        admitted=sum(answer.status == 200 for answer in good),
        denied=sum(answer.status == 429 for answer in good),
        unavailable=sum(answer.status == 503 for answer in good),
        # A denial with 503 is the client's own, since the server that is up has its store within itself.
        by_client=sum(answer.error is not None or answer.status == 503 for answer in good),
        reasons=collections.Counter(answer.error for answer in good if answer.error is not None),
        errors=collections.Counter(answer.status for answer in answers if answer.status not in (200, 429, 503)),
        seconds=sorted(answer.seconds for answer in good),
    )
