"""Flask, on gunicorn's threads, or by itself on Werkzeug's server with a thread for each connection."""

from flask import Flask, request
from shared import CLIENT_OPTIONS, attributes_of_environ, counts, listening, source_of, spend_half, spending_wsgi
from spillgate import Client
from spillgate.wsgi import RateLimit

app = Flask(__name__)
app.wsgi_app = spending_wsgi(RateLimit(app.wsgi_app, Client(**CLIENT_OPTIONS), attributes=attributes_of_environ))


@app.get("/counts")
def get_counts():
    return counts()


@app.get("/work")
def work():
    spend_half(request.environ["QUERY_STRING"])
    return source_of(request.environ["spillgate"])


if __name__ == "__main__":
    import logging
    import sys

    from werkzeug.serving import make_server

    # Each of 5,000 threads that waits for the interpreter wakes up once an interval; at 5 ms they do nothing else.
    sys.setswitchinterval(0.1)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    make_server("127.0.0.1", 0, app, threaded=True, fd=listening().detach()).serve_forever()
