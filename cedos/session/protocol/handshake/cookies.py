"""Cookies: under load, a hello is only worked on when its sender has shown that it reads answers.

The answer to a hello without a cookie costs one hash and leaves nothing behind. A cookie is good for
the address and the very hello it was made for, for a minute or two.
"""

import hmac
from typing import Final

from cedos.session.protocol.handshake.messages import COOKIE_BYTES

_PERIOD_S: Final = 60.0


class Cookies:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, address: str, content: bytes, now: float) -> bytes:
        return self._of(address, content, int(now // _PERIOD_S))

    def good(self, cookie: bytes, address: str, content: bytes, now: float) -> bool:
        """Whether it was made for this content and address, at most two minutes ago."""
        period = int(now // _PERIOD_S)
        return any(
            hmac.compare_digest(cookie, self._of(address, content, which))
            for which in (period, period - 1)
        )

    def _of(self, address: str, content: bytes, period: int) -> bytes:
        where = address.encode()
        of = period.to_bytes(8, "big", signed=True) + bytes((len(where),)) + where + content
        return hmac.digest(self._secret, of, "sha256")[:COOKIE_BYTES]
