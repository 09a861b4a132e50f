"""WSGI middleware: Flask, Django, Pyramid, Bottle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import responses
from typing import TYPE_CHECKING, Any

from ._middleware import Middleware, denial, fields_of
from .client import Client

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

    Base = Middleware[WSGIApplication, Client, WSGIEnvironment]
else:
    Base = Middleware


class RateLimit(Base):
    """Answers denied requests itself, and adds the header fields of the decision to all others.

    The decision is ``environ["spillgate"]``. Its permits end when the server closes the response. `Middleware` has
    the arguments.
    """

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        method: str = environ["REQUEST_METHOD"]
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        # WSGI hands out bytes as Latin-1.
        path = path.encode("latin-1", "replace").decode("utf-8", "replace")
        # Servers join several lines by commas.
        forwarded_for = environ.get("HTTP_X_FORWARDED_FOR")
        check = self._check_of(
            environ, method, path, environ.get("REMOTE_ADDR"), (forwarded_for,) if forwarded_for else ()
        )
        if check is None:
            return self.app(environ, start_response)
        decision = self._client.decide(check)
        environ["spillgate"] = decision
        if decision.allowed:
            fields = fields_of(decision)
            start = _adding(fields, start_response) if fields else start_response
            if decision.receipt is None:
                return self.app(environ, start)
            return self._releasing_after(environ, start, decision.receipt)
        status, headers, body = denial(decision, method)
        # A rule may set a status that has no name.
        start_response(f"{status} {responses.get(status, 'Denied')}", headers)
        return [body] if body else []

    def _releasing_after(
        self, environ: WSGIEnvironment, start_response: StartResponse, receipt: str
    ) -> Iterable[bytes]:
        def release() -> None:
            self._client.finish(receipt)

        try:
            return _Releasing(self.app(environ, start_response), release)
        except BaseException:
            release()
            raise


class _Releasing:
    """A response that ends the permits of its request when the server closes it."""

    def __init__(self, body: Iterable[bytes], release: Callable[[], None]) -> None:
        self._body = body
        self._release = release

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._release()


def _adding(fields: Mapping[str, str], start_response: StartResponse) -> StartResponse:
    def start_response_with_fields(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        names = {name.lower() for name, _ in headers}
        # An inner layer stands nearer to the work: its fields stay.
        if not any(name.lower() in names for name in fields):
            headers = headers + list(fields.items())
        return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

    return start_response_with_fields
