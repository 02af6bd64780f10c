"""The relay's own answers: that a tunnel stands, or why there is none (Proxy-Status, RFC 9209)."""

from http import HTTPStatus

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_NAME = "cedos"


class RefusedError(Exception):
    """`kind` is an error type of RFC 9209, section 2.3, `details` one line of ASCII."""

    def __init__(self, status: HTTPStatus, kind: str, details: str) -> None:
        super().__init__(details)
        self.status = status
        self.kind = kind
        self.details = "".join(c if " " <= c <= "~" else "?" for c in details)


def answer(refused: RefusedError) -> bytes:
    status = refused.status
    body = f"cedos relay: {refused.details}\n".encode()
    quoted = refused.details.replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=us-ascii",
        f"Content-Length: {len(body)}",
        f'Proxy-Status: {_NAME}; error={refused.kind}; details="{quoted}"',
        "Connection: close",
    ]
    if status is HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        lines.append(f'Proxy-Authenticate: Basic realm="{_NAME}"')
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 5")
    return "\r\n".join([*lines, "", ""]).encode() + body
