"""An application with two routes, for paths.py. The last argument is its port."""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


def login(_):
    return PlainTextResponse("login")


uvicorn.run(
    Starlette(routes=[Route("/login", login), Route("/a/login", login)]),
    port=int(sys.argv[-1]),
    log_level="error",
)
