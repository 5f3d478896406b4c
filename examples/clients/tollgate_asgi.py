"""ASGI middleware for FastAPI, Starlette or Django: one check per request. Standard library only.

    app.add_middleware(Tollgate, url="http://127.0.0.1:8080", domain="api")

DEADLINE (seconds) covers the whole check. If no decision arrives in time, requests pass (FAIL_OPEN) or get status 503.
"""
import asyncio
import http.client
import io
import json
import os
from urllib.parse import urlsplit

DEADLINE = 0.25
FAIL_OPEN = True
FAILED = 200 if FAIL_OPEN else 503
PASSED_ON = ("retry-after", "ratelimit", "ratelimit-policy")


async def ask(url, body, token):
    """Returns the status and the headers of the response; the body is not needed."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or (443 if tls else 80), ssl=tls or None)
    try:
        authorization = f"authorization: Bearer {token}\r\n" if token else ""
        head = f"POST /v1/check HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: {len(body)}\r\n{authorization}\r\n"
        writer.write(head.encode() + body)
        status, _, headers = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        return int(status.split()[1]), http.client.parse_headers(io.BytesIO(headers))
    finally:
        writer.close()


async def check(url, domain, attributes, token=None):
    """Returns 200 or the status of the refusal, and the headers for the client."""
    body = json.dumps({"domain": domain, "attributes": attributes}).encode()
    try:
        status, headers = await asyncio.wait_for(ask(url, body, token), DEADLINE)
    except (OSError, EOFError, ValueError, IndexError, asyncio.TimeoutError, asyncio.LimitOverrunError):
        return FAILED, {}
    if headers.get("content-type") != "application/json":
        return FAILED, {}  # Not a decision: an invalid request or token, or an overloaded server.
    return status, {name: value for name, value in headers.items() if name.lower() in PASSED_ON}


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
        status, headers = await check(self.url, self.domain, self.attributes(scope), self.token)
        passed_on = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        if status == 200:
            async def send_with_headers(message):
                if message["type"] == "http.response.start":
                    message = {**message, "headers": list(message.get("headers", [])) + passed_on}
                await send(message)
            return await self.app(scope, receive, send_with_headers)
        await send({"type": "http.response.start", "status": status, "headers": passed_on})
        await send({"type": "http.response.body", "body": b""})
