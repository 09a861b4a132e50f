"""An application with three routes, and one for all paths below a prefix, for paths.py. The last argument is its port."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


def login(_):
    return PlainTextResponse("login")


uvicorn.run(
    Starlette(routes=[Route(path, login) for path in ["/login", "/a/login", "/gpt:go", "/under/{rest:path}"]]),
    port=int(sys.argv[-1]),
    http="h11",
    log_level="error",
)
