"""A small service on Flask, with the limiter that LIMITER names; gunicorn serves it with threads."""

import os

from flask import Flask

app = Flask(__name__)
limiter = os.environ["LIMITER"]

if limiter == "Spillgate":
    from spillgate import Client
    from spillgate.wsgi import RateLimit

    app.wsgi_app = RateLimit(app.wsgi_app, Client(os.environ["SPILLGATE_URL"]))
elif limiter == "flask-limiter":
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    Limiter(
        get_remote_address,
        app=app,
        storage_uri=os.environ["REDIS_URL"],
        default_limits=["1000000000/day"],
        headers_enabled=True,
    )


@app.get("/")
def answer():
    return "ok"
