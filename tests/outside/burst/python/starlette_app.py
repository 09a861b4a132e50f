"""Starlette on uvicorn. The handler is a coroutine, so it blocks the event loop while it computes."""

from shared import CLIENT_OPTIONS, SpendingASGI, attributes_of_scope, counts, serve_asgi, source_of, spend_half
from spillgate import AsyncClient
from spillgate.asgi import RateLimit
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route


async def get_counts(request):
    return Response(counts())


async def work(request):
    spend_half(request.url.query)
    return Response(source_of(request.scope["spillgate"]))


app = Starlette(
    routes=[Route("/counts", get_counts), Route("/work", work)],
    middleware=[
        Middleware(SpendingASGI),
        Middleware(RateLimit, client=AsyncClient(**CLIENT_OPTIONS), attributes=attributes_of_scope),
    ],
)

if __name__ == "__main__":
    serve_asgi(app)
