"""Django middleware: one check per request. Standard library only.

    MIDDLEWARE = ["tollgate_django.Tollgate", ...]
    TOLLGATE = {"url": "http://127.0.0.1:8080", "domain": "api"}

DEADLINE (seconds) covers the whole check except the DNS lookup. If no decision arrives in time, requests pass
(FAIL_OPEN) or get status 503.
"""
import http.client
import io
import json
import socket
import ssl
import time
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpResponse

DEADLINE = 0.25
FAIL_OPEN = True
FAILED = 200 if FAIL_OPEN else 503
PASSED_ON = ("retry-after", "ratelimit", "ratelimit-policy")


def ask(url, body, token):
    """Returns the status and the headers of the response; the body is not needed. Each step may use the remaining time."""
    end = time.monotonic() + DEADLINE

    def left():
        if (seconds := end - time.monotonic()) <= 0:
            raise TimeoutError
        return seconds

    parts = urlsplit(url)
    tls = parts.scheme == "https"
    with socket.create_connection((parts.hostname, parts.port or (443 if tls else 80)), left()) as plain:
        plain.settimeout(left())
        stream = ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname) if tls else plain
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
        head = f"POST /v1/check HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: {len(body)}\r\n{authorization}\r\n"
        stream.settimeout(left())
        stream.sendall(head.encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            stream.settimeout(left())
            if not (part := stream.recv(4096)):
                raise EOFError
            answer += part
    status, _, headers = answer.partition(b"\r\n")
    return int(status.split()[1]), http.client.parse_headers(io.BytesIO(headers))


def check(url, domain, attributes, token=None):
    """Returns 200 or the status of the refusal, and the headers for the client."""
    body = json.dumps({"domain": domain, "attributes": attributes}).encode()
    try:
        status, headers = ask(url, body, token)
    except (OSError, EOFError, ValueError, IndexError):
        return FAILED, {}
    if headers.get("content-type") != "application/json":
        return FAILED, {}  # Not a decision: an invalid request or token, or an overloaded server.
    return status, {name: value for name, value in headers.items() if name.lower() in PASSED_ON}


class Tollgate:
    def __init__(self, get_response):
        self.get_response = get_response
        self.config = settings.TOLLGATE

    def attributes(self, request):
        """Returns the attributes that rules match and count by. REMOTE_ADDR is the address of the connection."""
        return {"client_ip": request.META["REMOTE_ADDR"], "path": request.path, "method": request.method}

    def __call__(self, request):
        config = self.config
        status, headers = check(config["url"], config["domain"], self.attributes(request), config.get("token"))
        response = self.get_response(request) if status == 200 else HttpResponse(status=status)
        for name, value in headers.items():
            response.headers[name] = value
        return response
