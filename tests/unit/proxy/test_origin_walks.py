"""Programs ask a changing origin through the proxy: what they get, and what it gets, is what was sent."""

import asyncio
import random
import re
import time
from dataclasses import dataclass
from email.utils import formatdate

import pytest
from kit.changing_origin import ChangingOrigin, Message, joined, listed, message

from cedos.proxy.local.local_proxy import Fail

HOP_BY_HOP = {
    "connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    "via", "host", "expect",
}  # fmt: skip
# Field, how often, and its values; "TAG" stands for those that the origin has used.
FIELDS = [
    ("Authorization", 0.07, ("Basic one", "Basic two")),
    ("Cookie", 0.07, ("a=1", "a=2")),
    ("X-User", 0.06, ("one", "two")),
    ("Accept-Language", 0.4, ("de", "en")),
    ("Accept-Encoding", 0.4, ("gzip", "gzip, br", "identity")),
    ("User-Agent", 0.4, ("a", "b")),
    ("Cache-Control", 0.2, ("no-cache", "max-age=0", "no-store", "max-stale", "only-if-cached",
                            "min-fresh=5", "max-age=5", "max-stale=100, only-if-cached")),
    ("Pragma", 0.05, ("no-cache",)),
    ("Range", 0.2, ("bytes=0-9", "bytes=5-", "bytes=-7", "bytes=0-0", "bytes=60000-69999", "bytes=300-",
                    "bytes=9999999-", "bytes=5-3", "bytes=-0", "bytes=0-3,5-9", "lines=1-2", "Bytes=1-2",
                    "bytes=0-99999999999999999999")),
    ("If-Range", 0.1, ("TAG", "DATE")),
    ("If-None-Match", 0.12, ("TAG", "TAG", "*", "TAG, TAG")),
    ("If-Modified-Since", 0.1, ("DATE", "x")),
    ("If-Match", 0.03, ("TAG",)),
    ("Connection", 0.1, ("close", "keep-alive", "X-Hop, TE", "upgrade", "x-user", "cookie")),
    ("X-Hop", 0.06, ("1",)),
    ("TE", 0.06, ("trailers, deflate",)),
    ("Upgrade", 0.06, ("h2c, websocket",)),
    ("Keep-Alive", 0.06, ("timeout=5",)),
    ("Proxy-Connection", 0.06, ("keep-alive",)),
    ("Via", 0.04, ("1.0 fred",)),
]  # fmt: skip


@dataclass
class Asked:
    """A program's request, and what became of it."""

    tag: str
    method: str
    path: str
    fields: list
    body: bytes = b""
    answer: Message | None = None

    @property
    def hops(self):
        return HOP_BY_HOP | set(listed(joined(self.fields, "connection")))


class Walk:
    """`wrong` has what went wrong, and `whole` the number of whole answers."""

    def __init__(self, ends, seed):
        self._ends, self._draw, self.origin = (
            ends,
            random.Random(f"walk {seed}"),
            ChangingOrigin(seed),
        )
        self._asked, self.wrong, self.whole = [], [], 0

    async def start(self):
        await self._ends.start(fail=self._draw.choice([Fail.CLOSED, Fail.OPEN]))
        self._port = await self._ends.origin(self.origin)

    async def run(self, steps):
        tasks, draw = set(), self._draw
        for number in range(steps):
            kind, path = draw.random(), draw.choice(list(self.origin.there))
            if kind < 0.03:
                self.origin.there[path].touch()
            elif kind < 0.06:
                self.origin.renew(path)
            elif kind < 0.07:
                await asyncio.gather(*tasks)
                tasks.clear()
                await self._ends.restart_gateway()
            else:
                for user in range(draw.choice([1, 1, 1, 2, 3])):
                    tasks.add(asyncio.create_task(self._program(f"{number}.{user}", path)))
            if len(tasks) > draw.choice([0, 0, 3]) or number + 1 == steps:
                await asyncio.wait_for(asyncio.gather(*tasks), 60)
                tasks.clear()
        self._judge_origin()

    def _fields(self):
        draw, tags = self._draw, sorted(self.origin.tags)
        less, fields = draw.choice([1, 0.15]), []
        for name, often, said in FIELDS:
            if draw.random() < often * less:
                value = re.sub("TAG", lambda _: draw.choice(tags), draw.choice(said))
                past = formatdate(time.time() - draw.choice([0, 3_000]), usegmt=True)
                fields.append((name, value.replace("DATE", past)))
        return fields

    async def _program(self, tag, path):
        draw = self._draw
        method = draw.choice(
            ["GET"] * 14 + ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "BREW", "get"]
        )
        fields, body, sent = [("Referer", tag), *self._fields()], b"", b""
        if method in ("POST", "PUT", "BREW") or draw.random() < 0.02:
            sent = body = draw.randbytes(draw.choice([0, 1, 500, 40_000]))
            if draw.random() < 0.5:
                fields.append(("Content-Length", str(len(body))))
            else:
                fields.append(("Transfer-Encoding", "chunked"))
                half = len(body) // 2 + 1
                sent = b"".join(
                    b"%x\r\n%s\r\n" % (len(each), each)
                    for each in (body[:half], body[half:])
                    if each
                ) + b"0\r\n%s\r\n" % draw.choice([b"", b"X-Behind: 2\r\n"])
            fields += [("Expect", "100-continue")] * (draw.random() < 0.2)
        if draw.random() < 0.1:  # the next request is not for this connection
            sent += b"GET /0 HTTP/1.1\r\nReferer: next\r\n\r\n"
        there = f"127.0.0.1:{self._port}"
        lower = [(name.lower(), value) for name, value in fields]
        one = Asked(tag, method, path, lower, body)
        self._asked.append(one)
        old = draw.random() < 0.05 and not joined(lower, "transfer-encoding")
        lines = [f"{method} http://{there}{path} HTTP/1.{1 - old}"]
        lines += [f"Host: {draw.choice([there, there, there, 'other.example'])}"]
        head = "\r\n".join([*lines, *map(": ".join, fields), "", ""]).encode()
        early = draw.choice([0, len(sent), len(sent), len(sent) // 2])
        leaves_at = draw.choice([0, 0, 1, 30_000]) if draw.random() < 0.08 else None
        raw, ended = b"", True
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._ends.proxy.addresses[0].port
        )
        try:
            writer.write(head + sent[:early])
            await asyncio.sleep(draw.choice([0, 0.002]))
            writer.write(sent[early:])
            while block := await asyncio.wait_for(reader.read(65_536), 30):
                raw += block
                if leaves_at is not None and len(raw) >= leaves_at:
                    writer.transport.abort()
                    return
        except ConnectionError:
            ended = False
        finally:
            writer.close()
        one.answer = message(raw, method, ended=ended)
        if one.answer is not None and one.answer.whole:
            self._judge(one)
        else:
            self._judge_sound(one, "did not come")

    def _judge(self, one):
        """Compare a whole answer with what the origin said."""
        self.whole += 1
        own = [each for each in self.origin.told if each.tag == one.tag and each.said is not None]
        why = [self._unlike(one, each) for each in own]
        if "" in why:
            return
        if joined(one.answer.fields, "proxy-status"):
            self._judge_sound(one, "was refused")
        else:
            self.wrong.append((f"its origin did not say that: {why}", one))

    def _judge_sound(self, one, what):
        own = [each for each in self.origin.told if each.tag == one.tag]
        if own and all(each.said and each.said.whole and not each.faulty for each in own):
            self.wrong.append((f"what its origin answers {what}", one))

    @staticmethod
    def _unlike(one, told):
        """Return how an answer differs from the origin's; empty: not at all."""
        answer, said = one.answer, told.said
        if not said.whole or (answer.status, answer.body) != (said.status, said.body):
            return "another answer"
        changed = {"connection", "keep-alive", "proxy-connection"}
        names = {name for name, _ in said.fields} - changed
        return ", ".join(
            each for each in names if joined(said.fields, each) != joined(answer.fields, each)
        )

    def _judge_origin(self):
        """Compare what came to the origin with what programs sent."""
        by_tag = {each.tag: each for each in self._asked}
        seen = set()
        for told in filter(lambda each: each.tag, self.origin.told):
            one = by_tag.get(told.tag)
            if one is None or (one.method, one.path) != (told.method, told.path) or told.behind:
                self.wrong.append(("no program sent this", told))
                continue
            if told.said is not None and told.body != one.body:
                self.wrong.append(("another body", one))
            if told.tag in seen and one.method not in ("GET", "HEAD", "OPTIONS"):
                self.wrong.append(("sent twice", one))
            seen.add(told.tag)
            sent = {
                name: joined(one.fields, name) for name, _ in one.fields if name not in one.hops
            }
            came = {
                name: joined(told.fields, name) for name, _ in told.fields if name not in HOP_BY_HOP
            }
            if came != sent:
                self.wrong.append((f"other fields came: {came}", one))


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        *((each, 40) for each in range(3)),
        *(pytest.param(each, 150, marks=pytest.mark.long) for each in range(3, 60)),
    ],
)
async def test_programs_get_what_their_origin_says(ends, seed, steps):
    walk = Walk(ends, seed)
    await walk.start()
    await walk.run(steps)
    assert not walk.wrong
    assert walk.whole > steps / 2
