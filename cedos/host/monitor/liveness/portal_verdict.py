"""Judge by a test page and by answers for names whether there is a captive portal (RFC 8952). Pure.

The test page has a known answer; any other one comes from a box in the way.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from cedos.controller.events import PortalFinding, PortalVerdict
from cedos.host.monitor.dns.message import is_public
from cedos.model import Address

MAX_ANSWER_BYTES = 4096
_LONGEST_PAGE = 500
_TAG = re.compile(rb"<[^<>]*>")
_CHUNK_SIZE = re.compile(rb"\A[0-9A-Fa-f]{1,8}[^\r\n]{0,100}\r\n")
_REDIRECTS = range(300, 400)
# 511 is made for portals (RFC 6585, 6); proxies that want a name and a password answer 401, 403 or 407.
_LOG_IN = frozenset({401, 403, 407, 511})


@dataclass(frozen=True, slots=True)
class TestPage:
    """The page that is asked for, and what it says: status 204 is right in any case."""

    __test__ = False  # no test of pytest's

    host: str
    port: int
    path: str
    body: str

    @classmethod
    def of(cls, url: str, body: str) -> "TestPage":
        """Return the page of an http:// URL; ValueError where it is none."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username:
            raise ValueError(
                f'"{url}" is no test page; one like "http://example.com/page" would be right:'
                " https cannot be answered by a portal"
            )
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname, parts.port or 80, path, body)

    def shown_by(self, body: bytes) -> bool:
        """Return whether an answer's text begins with this page's.

        A log-in page can have the same words further on: "success" is in many scripts.
        """
        expected = _TAG.sub(b"", self.body.encode()).strip()
        without_size = _CHUNK_SIZE.sub(b"", body)
        texts = (_TAG.sub(b"", each).lstrip() for each in (body, without_size))
        return bool(expected) and any(each.startswith(expected) for each in texts)

    def request(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"GET {self.path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: cedos\r\n"
            "Accept: */*\r\nCache-Control: no-cache\r\nConnection: close\r\n\r\n"
        ).encode()


def judge(page: TestPage, answer: bytes) -> PortalFinding:
    """Return what an answer to the page's request says (the first `MAX_ANSWER_BYTES` of it)."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        if answer:
            return PortalFinding(
                PortalVerdict.CAPTIVE, "the test page was answered by something else than HTTP"
            )
        why = "the test page's connection was closed without an answer"
        return PortalFinding(PortalVerdict.SILENT, why)
    status = int(words[1])
    named = [line.partition(":") for line in lines]
    location = next((v.strip() for n, _, v in named if n.strip().lower() == "location"), "")
    likeness = sha256(f"{status} {location} ".encode() + body).hexdigest()
    if status == 204:
        return PortalFinding(PortalVerdict.FREE, "the test page answered as it should")
    if status == 200:
        if page.shown_by(body):
            return PortalFinding(PortalVerdict.FREE, "the test page answered as it should")
        if not body:
            return PortalFinding(PortalVerdict.UNCLEAR, "the test page came without its content")
        why = "another page came in place of the test page"
        return PortalFinding(PortalVerdict.CAPTIVE, why, likeness=likeness)
    if status in _REDIRECTS:
        log_in = location if _web_page(location) else ""
        nowhere = "" if log_in else " to something that is no web page"
        why = f"the test page was redirected{nowhere}"
        return PortalFinding(PortalVerdict.CAPTIVE, why, log_in, likeness)
    if status in _LOG_IN:
        return PortalFinding(
            PortalVerdict.CAPTIVE, f"the test page was refused ({status})", "", likeness
        )
    return PortalFinding(PortalVerdict.UNCLEAR, f"the test page answered with status {status}")


def _web_page(location: str) -> bool:
    """Return whether users can be told to open it: any host may have sent this answer."""
    return (
        location.lower().startswith(("http://", "https://"))
        and len(location) <= _LONGEST_PAGE
        and location.isascii()
        and location.isprintable()
        and " " not in location
    )


def same_private_address(answers: Mapping[str, Sequence[Address]]) -> Address | None:
    """Return the one private address that was given for every one of several names."""
    given = [tuple(addresses) for addresses in answers.values()]
    if len(given) < 2 or not given[0] or any(other != given[0] for other in given):
        return None
    return None if any(map(is_public, given[0])) else given[0][0]


def origin(address: Address) -> str:
    return f"http://[{address}]/" if isinstance(address, IPv6Address) else f"http://{address}/"
