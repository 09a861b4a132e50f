"""FastAPI on uvicorn. The handler is a plain function, so it runs in a thread."""

from fastapi import FastAPI, Request, Response
from shared import CLIENT_OPTIONS, SpendingASGI, attributes_of_scope, counts, serve_asgi, source_of, spend_half
from spillgate import AsyncClient
from spillgate.asgi import RateLimit

app = FastAPI()
app.add_middleware(RateLimit, client=AsyncClient(**CLIENT_OPTIONS), attributes=attributes_of_scope)
app.add_middleware(SpendingASGI)


@app.get("/counts")
def get_counts():
    return Response(counts())


@app.get("/work")
def work(request: Request):
    spend_half(request.url.query)
    return Response(source_of(request.scope["spillgate"]))


if __name__ == "__main__":
    serve_asgi(app)
