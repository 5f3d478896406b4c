"""redis-py: one check per call over the Redis protocol. Needs the package `redis`.

    limits = Limits("redis://127.0.0.1:6380")
    allowed, retry_after = limits.check("api", user="alice")

DEADLINE (seconds) applies to connecting and to each check. If the server does not answer in time, requests pass if FAIL_OPEN
is true.
"""
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

DEADLINE = 0.25
FAIL_OPEN = True


class Limits:
    def __init__(self, url):
        # By default, redis-py makes up to four attempts per call, each with the full timeout.
        self.client = redis.Redis.from_url(
            url, socket_timeout=DEADLINE, socket_connect_timeout=DEADLINE, retry=Retry(NoBackoff(), 0)
        )

    def check(self, domain, cost="-", **attributes):
        """Returns whether the request may pass, and the milliseconds to wait if not (-1: waiting does not help)."""
        words = [word for pair in attributes.items() for word in pair]
        try:
            reply = self.client.execute_command("TG.CHECK", domain, cost, *words)
        except (redis.ConnectionError, redis.TimeoutError):
            return FAIL_OPEN, 0
        fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2]))
        return bool(fields[b"allowed"]), fields.get(b"retry_after_ms", 0)

    def pipeline(self):
        """Returns a pipeline, for several checks in one round trip. Tollgate has no transactions."""
        return self.client.pipeline(transaction=False)
