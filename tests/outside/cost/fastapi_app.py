"""A small service on FastAPI and uvicorn, with the limiter that LIMITER names."""

import os
import socket

import uvicorn
from fastapi import FastAPI, Request, Response

app = FastAPI()
limiter = os.environ["LIMITER"]


async def answer(request: Request) -> Response:
    return Response("ok")


if limiter == "Spillgate":
    from spillgate import AsyncClient
    from spillgate.asgi import RateLimit

    app.add_middleware(RateLimit, client=AsyncClient(os.environ["SPILLGATE_URL"]))
elif limiter == "slowapi":
    from slowapi import Limiter
    from slowapi.util import get_remote_address

    app.state.limiter = Limiter(get_remote_address, storage_uri=os.environ["REDIS_URL"], headers_enabled=True)
    answer = app.state.limiter.limit("1000000000/day")(answer)
app.get("/")(answer)

config = uvicorn.Config(app, access_log=False, log_level="warning")
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(os.environ["LISTEN_FD"]))])
