"""Django on waitress, whose threads wait for whole requests."""

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from shared import CLIENT_OPTIONS, attributes_of_environ, counts, listening, source_of, spend_half, spending_wsgi
from spillgate import Client
from spillgate.wsgi import RateLimit

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, MIDDLEWARE=[], LOGGING_CONFIG=None)
django.setup()


def get_counts(request):
    return HttpResponse(counts())


def work(request):
    spend_half(request.META["QUERY_STRING"])
    return HttpResponse(source_of(request.META["spillgate"]))


urlpatterns = [path("counts", get_counts), path("work", work)]
app = spending_wsgi(RateLimit(get_wsgi_application(), Client(**CLIENT_OPTIONS), attributes=attributes_of_environ))

if __name__ == "__main__":
    import waitress

    # Its usual bounds of 100 connections and of descriptors below 1,024 would not let the generator open all of its own.
    waitress.create_server(
        app, sockets=[listening()], threads=32, backlog=8192, connection_limit=8192, asyncore_use_poll=True
    ).run()
