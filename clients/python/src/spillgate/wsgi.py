"""WSGI middleware: Flask, Django, Pyramid, Bottle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http.client import responses
from typing import TYPE_CHECKING, Any

from ._limiter import Limiter, Seen, checked_client, denial, missing_fields
from ._request import InlineLimit
from .client import Client
from .decision import Decision

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment
    from typing_extensions import Unpack

    from ._limiter import Options

    Base = Limiter[WSGIEnvironment]
else:
    Base = Limiter


class RateLimit(Base):
    """Answers denied requests itself, and adds the header fields of the decision to all others.

    The decision is ``environ["spillgate"]``. Its permits end when the server closes the response. `Limiter` has the
    options.
    """

    def __init__(
        self,
        app: WSGIApplication,
        client: Client,
        limit: str | InlineLimit | None = None,
        **options: Unpack[Options[WSGIEnvironment]],
    ) -> None:
        super().__init__(limit, **options)
        self.app = app
        self._client = checked_client(client, Client)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        seen = _seen(environ)
        request = self.request(environ, seen)
        if request is None:
            return self.app(environ, start_response)
        decision = self._client.decide(request, ttl=self.ttl, counter=self.counter(seen))
        environ["spillgate"] = decision
        if decision.allowed:
            return _Response(self, self._client, decision).start(self.app, environ, start_response)
        status, headers, body = denial(decision, environ["REQUEST_METHOD"])
        # A rule may set a status that has no name.
        start_response(f"{status} {responses.get(status, 'Denied')}", headers)
        return [body] if body else []


class _Response:
    """The response to an allowed request. The permits of the request end when the server closes it."""

    def __init__(self, limiter: RateLimit, client: Client, decision: Decision) -> None:
        self._limiter = limiter
        self._client = client
        self._decision = decision
        self._receipt = decision.receipt
        self._body: Iterable[bytes] = ()

    def start(self, app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start_with_fields(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
        ) -> Callable[[bytes], object]:
            self._count(int(status.split(" ", 1)[0]))
            headers = headers + missing_fields(self._decision, [name for name, _ in headers])
            return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

        try:
            self._body = app(environ, start_with_fields)
        except BaseException as error:
            self._fail(error)
            self._end()
            raise
        return self._body if self._receipt is None else self

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception as error:
            self._fail(error)
            raise

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._end()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            # The server answers 500, if the response has not begun.
            self._count(500)

    def _count(self, status: int) -> None:
        """Refunds the request if its outcome does not count."""
        if self._receipt is not None and not self._limiter.counts(status):
            receipt, self._receipt = self._receipt, None
            self._client.finish(receipt, refund=True)

    def _end(self) -> None:
        receipt, self._receipt = self._receipt, None
        if receipt is not None:
            self._client.finish(receipt)


def _seen(environ: WSGIEnvironment) -> Seen:
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    # WSGI hands out bytes as Latin-1.
    path = path.encode("latin-1", "replace").decode("utf-8", "replace")
    # Servers join several lines by commas.
    forwarded_for = environ.get("HTTP_X_FORWARDED_FOR")
    lines = (forwarded_for,) if forwarded_for else ()
    return Seen(environ["REQUEST_METHOD"], path, None, environ.get("REMOTE_ADDR"), lines)
