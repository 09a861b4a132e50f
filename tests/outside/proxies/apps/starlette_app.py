"""An application with two routes, and one for all paths below a prefix, for paths.py. The last argument is its port."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


def login(_):
    return PlainTextResponse("login")


uvicorn.run(
    Starlette(routes=[Route(path, login) for path in ["/login", "/a/login", "/under/{rest:path}"]]),
    port=int(sys.argv[-1]),
    log_level="error",
)
