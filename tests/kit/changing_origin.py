"""An origin of HTTP whose few resources change, and which often answers by no rule; drawn by chance."""

import asyncio
import gzip
import random
import re
import socket
import struct
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime

FAULTS = (
    "cut", "reset", "cut chunks", "trailing", "informational", "101", "304", "206", "206 other", "both",
    "coded", "500", "302", "204", "folded", "other size", "hang up",
)  # fmt: skip
RULES = (
    *[""] * 2, *["max-age=600"] * 6, *["max-age=60"] * 3, "max-age=60, s-maxage=5", "no-store",
    "s-maxage=900, max-age=0", "private, max-age=600", "no-cache", "max-age=0, must-revalidate", "public",
    'private="x-token", max-age=600', 'no-cache="set-cookie", max-age=600', "max-age=-1", "max-age=abc",
    "max-age=0; must-revalidate", 'max-age="600"', "max-age=0, max-age=600", "immutable, max-age=300",
    "max-age=5, stale-while-revalidate=600", "MAX-AGE=30",
)  # fmt: skip
BY = (
    (), (), ("accept-language",), ("accept-encoding",), ("user-agent",), ("authorization",), ("cookie",),
    ("x-user",), ("accept-language", "accept-encoding"),
)  # fmt: skip


def parsed(head):
    """Return the first line of a head, and its fields in lower case."""
    first, *lines = re.sub(rb"\r?\n[ \t]+", b" ", head).decode("latin-1").split("\r\n")
    pairs = [each.partition(":") for each in lines if each]
    return first, [(name.lower(), value.strip()) for name, _, value in pairs]


def joined(fields, name):
    return ", ".join(value for each, value in fields if each == name)


def listed(text):
    return [each.strip().lower() for each in text.split(",")]


def seconds(text):
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def dechunked(data):
    """Return the body of chunks, and whether it is whole."""
    body = b""
    while found := re.match(rb"([0-9a-f]+)[^\r]*\r\n", data):
        size, data = int(found[1], 16), data[found.end() :]
        if not size:
            return body, data.startswith(b"\r\n") or b"\r\n\r\n" in data
        body, end, data = body + data[:size], data[size : size + 2], data[size + 2 :]
        if end != b"\r\n":
            break
    return body, False


@dataclass
class Message:
    """An answer as a program reads it (RFC 9112, 6.3)."""

    status: int
    fields: list
    body: bytes
    whole: bool


def message(raw, method, *, ended):
    """Parse what came; `ended`: by an orderly end, and not by a reset. None: no head came."""
    status = 100
    while 100 <= status < 200 and status != 101:
        head, found, raw = raw.partition(b"\r\n\r\n")
        if not found:
            return None
        first, fields = parsed(head)
        status = int(first.split()[1])
    length, coding = joined(fields, "content-length"), joined(fields, "transfer-encoding")
    if method == "HEAD" or status in (204, 304):
        return Message(status, fields, b"", whole=True)
    if coding.endswith("chunked"):
        return Message(status, fields, *dechunked(raw))
    if coding or not length:
        return Message(status, fields, raw, ended)
    return Message(status, fields, raw[: int(length)], len(raw) >= int(length))


@dataclass
class Told:
    """A request as the origin got it, and what it answered; `full`: all of what it has for that asker."""

    tag: str  # of the program's request, in its field `Referer`
    method: str
    path: str
    fields: list
    at_s: float
    body: bytes = b""
    behind: bytes = b""
    full: bytes = b""
    said: Message | None = None
    faulty: bool = False
    over_s: float = 0.0


class Resource:
    """The resource at a path, with its rules."""

    def __init__(self, draw, path, version=0):
        self.path, self.version = path, version
        self.changed_s = time.time() - draw.choice([5, 3_000, 10**8])
        self.size = draw.choice([0, 1, 300, *[70_000] * 6, 90_000, 90_000, 200_000])
        self.tags = draw.choice(["", "", "W/", None])
        self.dated = draw.choice(["right", "right", "none", "now"])
        self.one_tag = draw.random() < 0.3  # of all variants
        self.rules, self.by = draw.choice(RULES), draw.choice(BY)
        self.for_all = draw.random() < 0.05
        self.expires_s = draw.choice([None, None, None, 60, 0, "0"])
        self.clock_s = draw.choice([0, 0, 0, 3_600, -3_600, None])
        self.age = draw.choice([None, None, None, None, None, 50, 700])
        self.cookie = draw.random() < 0.05
        self.ranges = draw.choice(["right", "right", "none", "other"])
        self.conditions = draw.random() < 0.85
        self.framing = draw.choice(["length"] * 5 + ["chunked", "end"])
        self.old = draw.random() < 0.1
        self.changes = draw.random() < 0.15  # with half of the answers

    def touch(self):
        self.version += 1
        self.changed_s = max(self.changed_s + 1, min(time.time() - 2, self.changed_s + 100))

    def find(self, fields):
        """Return the body for who asks, and the fields that belong to it."""
        asked = tuple(joined(fields, each) for each in self.by)
        packed = "accept-encoding" in self.by and "gzip" in joined(fields, "accept-encoding")
        if self.by == ("accept-encoding",):
            asked = (packed,)
        who = f"{self.path} {self.version} {asked}".encode()
        body = (who + random.Random(who).randbytes(self.size))[: self.size]
        own = [("Server", "walk")]
        now_s = None if self.clock_s is None else time.time() + self.clock_s
        if packed:
            body = gzip.compress(body, 1, mtime=0)
            own.append(("Content-Encoding", "gzip"))
        if now_s is not None:
            own.append(("Date", formatdate(now_s, usegmt=True)))
        if self.tags is not None:
            variant = 0 if self.one_tag else zlib.crc32(repr(asked).encode())
            own.append(("ETag", f'{self.tags}"{self.version}-{variant}"'))
        if self.dated != "none":
            changed_s = self.changed_s if self.dated == "right" else now_s or time.time()
            own.append(("Last-Modified", formatdate(changed_s, usegmt=True)))
        if self.expires_s is not None:
            until_s = (now_s or time.time()) + int(self.expires_s)
            own.append(
                ("Expires", formatdate(until_s, usegmt=True) if self.expires_s != "0" else "0")
            )
        vary = [each for each in self.by if each.startswith(("accept", "user"))] + [
            "*"
        ] * self.for_all
        said = {"Cache-Control": self.rules, "Vary": ", ".join(vary), "Age": str(self.age or "")}
        return body, own + [each for each in said.items() if each[1]]


class ChangingOrigin:
    """Serves its resources (`there`); `told` has each request with its answer."""

    def __init__(self, seed, faults=0.2):
        self.seed, self._faults = seed, faults
        self._draw, self._count = random.Random(f"origin {seed}"), 0
        self.there = {f"/{number}": Resource(self._draw, f"/{number}") for number in range(4)}
        self.told, self.tags = [], {'"none"'}

    def renew(self, path):
        self.there[path] = Resource(self._draw, path, self.there[path].version + 1)

    async def __call__(self, reader, writer):
        with suppress(ConnectionError, asyncio.IncompleteReadError, OSError):
            await self._serve(reader, writer)

    async def _serve(self, reader, writer):
        first, fields = parsed((await reader.readuntil(b"\r\n\r\n"))[:-4])
        method, target, _ = first.split(" ")
        one = Told(joined(fields, "referer"), method, target, fields, time.time())
        self._count += 1
        draw = random.Random(f"{self.seed} {one.tag} {self._count}")
        if target not in self.there:
            writer.write(b"HTTP/1.1 404 Not here\r\nContent-Length: 0\r\n\r\n")
            return
        self.told.append(one)
        if joined(fields, "expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if joined(fields, "transfer-encoding"):
            raw = b""
            while not dechunked(raw)[1]:
                raw += await reader.readuntil(b"\r\n")
            one.body = dechunked(raw)[0]
        else:
            one.body = await reader.readexactly(int(joined(fields, "content-length") or 0))
        await asyncio.sleep(draw.choice([0, 0, 0.003, 0.02]))
        changes = {"POST": 0.7, "PUT": 0.7, "DELETE": 0.7}.get(
            method, 0.5 * self.there[target].changes
        )
        if draw.random() < changes:
            self.there[target].touch()
        raw, reset = self._answer(one, self.there[target], draw)
        one.said, one.over_s = message(raw, method, ended=not reset), time.time()
        for at in range(0, len(raw), 65_536):
            writer.write(raw[at : at + 65_536])
            await writer.drain()
        if reset:
            await asyncio.sleep(0.01)
            own = writer.get_extra_info("socket")
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return
        writer.write_eof()
        with suppress(TimeoutError):
            one.behind = await asyncio.wait_for(reader.read(), 1)

    def _status(self, one, there, own, draw):
        """Return the status, and of the whole body the first byte and that behind the last."""
        asked, whole, size = one.fields, (200, 0, len(one.full)), len(one.full)
        if one.method not in ("GET", "HEAD"):
            return whole
        tag, modified = own.get("ETag", ""), own.get("Last-Modified", "")
        exact = modified if there.dated == "right" else ""
        if there.conditions and (wanted := joined(asked, "if-none-match")):
            known = [each.strip().removeprefix("W/") for each in wanted.split(",")]
            if wanted == "*" or (tag and tag.removeprefix("W/") in known):
                return 304, 0, 0
        elif there.conditions and exact:
            since_s = seconds(joined(asked, "if-modified-since"))
            if since_s is not None and seconds(exact) <= since_s:
                return 304, 0, 0
        on = joined(asked, "if-range")
        same = not on or on == exact or (on == tag and not tag.startswith("W/"))
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", joined(asked, "range"))
        if one.method == "HEAD" or there.ranges == "none" or not (wanted and same and size):
            return whole
        first = int(wanted[1]) if wanted[1] else max(0, size - int(wanted[2] or 0))
        end = min(size, int(wanted[2]) + 1) if wanted[1] and wanted[2] else size
        if there.ranges == "other" and draw.random() < 0.3:
            first = max(0, first - 1)
        return (206, first, end) if first < min(end, size) else (416, 0, 0)

    def _answer(self, one, there, draw):
        """Return the bytes of an answer, and whether a reset follows."""
        fault = draw.choice(FAULTS) if draw.random() < self._faults else ""
        one.faulty, early, reset, framing = bool(fault), b"", False, there.framing
        one.full, fields = there.find(one.fields)
        self.tags.add(dict(fields).get("ETag", '"none"'))
        status, first, end = self._status(one, there, dict(fields), draw)
        if fault == "hang up":
            return b"", draw.random() < 0.5
        if fault == "informational":
            early = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * draw.randint(1, 3)
        elif fault == "101":
            early = (
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"
            )
        elif fault.startswith("206") and status == 200 and len(one.full) > 2:
            status, first = 206, int(fault == "206 other")
        elif fault.isdecimal():
            status = int(fault)
        elif fault in ("cut chunks", "coded", "both"):
            framing = "chunked"
        elif fault in ("cut", "other size", "trailing"):
            framing = "length"
        if status in (206, 416):
            span = f"{first}-{end - 1}" if status == 206 else "*"
            fields.append(("Content-Range", f"bytes {span}/{len(one.full)}"))
        fields += [("Location", "/elsewhere")] * (status == 302)
        fields += [("X-Folded", "a\r\n b")] * (fault == "folded")
        fields += [("Set-Cookie", f"of={one.tag}")] * there.cookie
        fields += [("Connection", "X-Hop"), ("X-Hop", "1")] * (draw.random() < 0.1)
        body = one.full[first:end] if status in (200, 206) else b"no" * (status >= 302)
        if status in (304, 204):
            framing, body = "none", b""
        if fault == "coded":
            body = gzip.compress(body)
        data = body
        if framing == "length" or fault == "both":
            more = draw.choice([-1, 1, 7]) if fault in ("other size", "both") else 0
            fields.append(("Content-Length", str(max(0, len(body) + more))))
        if framing == "chunked":
            fields.append(("Transfer-Encoding", "gzip, " * (fault == "coded") + "chunked"))
            step = draw.choice([1_000, 60_000, 200_000])
            pieces = [body[at : at + step] for at in range(0, len(body), step)]
            data = b"".join(b"%x;a=b\r\n%s\r\n" % (len(each), each) for each in pieces)
            data += b"0\r\nX-Behind: 1\r\n\r\n"
        if fault in ("cut", "cut chunks", "reset") and data:
            data = data[: draw.randrange(len(data))]
            reset = fault == "reset" or draw.random() < 0.5
        if fault == "trailing":
            data += b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
        old = there.old and framing != "chunked" and fault != "both"
        lines = [f"HTTP/1.{1 - old} {status} Said", *(f"{name}: {value}" for name, value in fields)]
        data = b"" if one.method == "HEAD" else data
        return early + "\r\n".join([*lines, "", ""]).encode() + data, reset
