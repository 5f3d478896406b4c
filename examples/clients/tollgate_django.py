"""Django middleware: one check per request. Standard library only.

    MIDDLEWARE = ["tollgate_django.Tollgate", ...]
    TOLLGATE = {"url": "http://127.0.0.1:8080", "domain": "api"}

A check has DEADLINE seconds. If the server does not answer in time, requests pass (FAIL_OPEN) or get 503.
"""
import http.client
import json
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpResponse

DEADLINE = 0.25
FAIL_OPEN = True
FAILED = 200 if FAIL_OPEN else 503
PASSED_ON = ("retry-after", "ratelimit", "ratelimit-policy")


def check(url, domain, attributes, token=None):
    """Returns 200 if the request may pass, otherwise the status to refuse it with; and the headers for the client."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=DEADLINE)
    headers = {"content-type": "application/json"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    try:
        body = json.dumps({"domain": domain, "attributes": attributes})
        connection.request("POST", "/v1/check", body, headers)
        response = connection.getresponse()
        response.read()
        if response.getheader("content-type") != "application/json":
            return FAILED, {}  # Not a decision: a mistake in the request or the token, or a server that is full.
        return response.status, {name: value for name, value in response.getheaders() if name.lower() in PASSED_ON}
    except (OSError, http.client.HTTPException):
        return FAILED, {}
    finally:
        connection.close()


class Tollgate:
    def __init__(self, get_response):
        self.get_response = get_response
        self.config = settings.TOLLGATE

    def attributes(self, request):
        """Returns what the rules match and count by; REMOTE_ADDR is the address of the connection."""
        return {"client_ip": request.META["REMOTE_ADDR"], "path": request.path, "method": request.method}

    def __call__(self, request):
        config = self.config
        status, headers = check(config["url"], config["domain"], self.attributes(request), config.get("token"))
        response = self.get_response(request) if status == 200 else HttpResponse(status=status)
        for name, value in headers.items():
            response.headers[name] = value
        return response
