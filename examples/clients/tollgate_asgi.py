"""ASGI middleware for FastAPI, Starlette or Django: one check per request. Standard library only.

    app.add_middleware(Tollgate, url="http://127.0.0.1:8080", domain="api")

A check has DEADLINE seconds. If the server does not answer in time, requests pass (FAIL_OPEN) or get 503.
"""
import asyncio
import http.client
import json
import os
from urllib.parse import urlsplit

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
    def __init__(self, app, url, domain, attributes=None, token=os.environ.get("TOLLGATE_TOKEN")):
        self.app, self.url, self.domain, self.token = app, url, domain, token
        self.attributes = attributes or self.default_attributes

    @staticmethod
    def default_attributes(scope):
        client = (scope.get("client") or ("",))[0]
        return {"client_ip": client, "path": scope["path"], "method": scope["method"]}

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        attributes = self.attributes(scope)
        status, headers = await asyncio.to_thread(check, self.url, self.domain, attributes, self.token)
        passed_on = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        if status == 200:
            async def send_with_headers(message):
                if message["type"] == "http.response.start":
                    message = {**message, "headers": list(message.get("headers", [])) + passed_on}
                await send(message)
            return await self.app(scope, receive, send_with_headers)
        await send({"type": "http.response.start", "status": status, "headers": passed_on})
        await send({"type": "http.response.body", "body": b""})
