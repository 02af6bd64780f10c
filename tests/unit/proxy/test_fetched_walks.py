"""Programs of two hosts ask a changing origin, through the proxy and the gateway that keeps objects.

What a program may take for a whole answer is what the origin gave it, or gave an equal request of the
same host without a user's field, not longer ago than the origin's rules allow (RFC 9111).
"""

import asyncio
import os
import random
import re
import shutil
import time
from dataclasses import dataclass
from email.utils import formatdate

import pytest
from kit.changing_origin import ChangingOrigin, Message, joined, listed, message, seconds

from cedos.apps.files.objects import object_fetcher
from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.object_serving import ProgramRequests, client_of
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.errors import TransferError
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.local_proxy import Fail, Listening, LocalProxy
from cedos.session.protocol.crypto import KeyPair

OF_USERS = {"authorization", "cookie", "x-user"}
HOP_BY_HOP = {
    "connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    "via", "host", "expect",
}  # fmt: skip
CONDITIONS = {"if-none-match", "if-modified-since", "if-range", "range"}
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
SLACK_S = 2.5


@dataclass
class Asked:
    """A program's request, and what became of it."""

    tag: str
    host: int
    method: str
    path: str
    fields: list
    body: bytes = b""
    began_s: float = 0.0
    ended_s: float = 0.0
    answer: Message | None = None

    @property
    def hops(self):
        return HOP_BY_HOP | set(listed(joined(self.fields, "connection")))

    def of_a_user(self):
        return bool(OF_USERS & ({name for name, _ in self.fields} - self.hops))


def fresh_until_s(fields, came_s):
    """Return until when an answer is fresh for a shared cache (RFC 9111, 4.2)."""
    rules = listed(joined(fields, "cache-control"))
    if "no-cache" in rules:
        return 0.0
    dated_s = seconds(joined(fields, "date"))
    dated_s = came_s if dated_s is None else dated_s
    came_s -= max(0.0, came_s - dated_s, float(joined(fields, "age") or 0))
    for name in ("s-maxage=", "max-age="):
        said = [each.removeprefix(name).strip('"') for each in rules if each.startswith(name)]
        if said:  # of several the first counts, and what is no number is stale
            return came_s + (int(said[0]) if said[0].isdigit() else 0)
    if expires := joined(fields, "expires"):
        until_s = seconds(expires)
        return 0.0 if until_s is None else came_s + until_s - dated_s
    changed_s = seconds(joined(fields, "last-modified"))
    # About a tenth of the time since the change, a week at most (4.2.2).
    return came_s + min(7 * 86_400, 0.12 * (came_s + 86_400 - (changed_s or came_s + 86_400)))


class Walk:
    """Two hosts with a proxy each; `wrong` has what went wrong."""

    def __init__(self, ends, folder, seed):
        self._ends, self._folder, self._seed = ends, folder, seed
        self._draw, self.origin = random.Random(f"walk {seed}"), ChangingOrigin(seed)
        self.passed_s, self._asked, self.wrong = 0.0, [], []
        self._versions, self._restarts, self._stores = {}, [], 0
        self.whole = self.kept = 0
        self._new_fetcher()

    async def start(self):
        ends, self._ends.requests = self._ends, self
        await ends.start(fail=self._draw.choice([Fail.CLOSED, Fail.OPEN]))
        self._port = await ends.origin(self.origin)
        other = KeyPair(os.urandom(32))
        ends.clients[other.public] = "other"
        joined_gateway = JoinedGateway(*ends.gateway.address, ends.me.public, other)
        self._link = GatewayLink(joined_gateway, patience_s=3.0)
        proxy = LocalProxy(GatewayLinks([self._link]), Fail.CLOSED)
        proxy.open([Listening("127.0.0.1", 0)])
        self._proxies = [ends.proxy, proxy]
        self._hosts = [client_of(ends.client.public), client_of(other.public)]

    async def fetch(self, *args):
        return await self._programs.fetch(*args)

    def _store(self):
        return self._folder / str(self._stores)

    def _new_fetcher(self):
        self._fetcher = ObjectFetcher(ObjectStore(self._store(), 10**9), lambda *_: "")
        self._programs = ProgramRequests(self._fetcher)

    async def close(self):
        await self._proxies[1].close()
        await self._link.close()
        await self._fetcher.close()

    async def run(self, steps):
        tasks, draw = set(), self._draw
        for number in range(steps):
            kind, path = draw.random(), draw.choice(list(self.origin.there))
            if kind < 0.03:
                self.origin.there[path].touch()
            elif kind < 0.06:
                self.origin.renew(path)
            elif kind < 0.12:
                self.passed_s += draw.choice([4, 20, 50, 300, 2_000])
            elif kind < 0.13:
                await self._restart(killed=draw.random() < 0.5)
            elif kind < 0.25:
                tasks.add(asyncio.create_task(self._get(path)))
            else:
                for user in range(draw.choice([1, 1, 1, 2, 3])):
                    tasks.add(asyncio.create_task(self._program(f"{number}.{user}", path)))
            if len(tasks) > draw.choice([0, 0, 3]) or number + 1 == steps:
                await asyncio.wait_for(asyncio.gather(*tasks), 60)
                tasks.clear()
        self._judge_origin()

    async def _restart(self, *, killed):
        """Begin again with what lies on the disk: at this instant (kill -9), or after an orderly end."""
        old, before = self._fetcher, self._store()
        self._restarts.append(time.time())
        self._stores += 1
        if killed and before.exists():
            shutil.copytree(before, self._store())
        await self._ends.restart_gateway()
        await old.close()
        if not killed and before.exists():
            before.rename(self._store())
        self._new_fetcher()
        self._restarts.append(time.time())

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
        number, there = draw.randrange(2), f"127.0.0.1:{self._port}"
        lower = [(name.lower(), value) for name, value in fields]
        one = Asked(tag, number, method, path, lower, body)
        self._asked.append(one)
        old = draw.random() < 0.05 and not joined(lower, "transfer-encoding")
        lines = [f"{method} http://{there}{path} HTTP/1.{1 - old}"]
        lines += [f"Host: {draw.choice([there, there, there, 'other.example'])}"]
        head = "\r\n".join([*lines, *map(": ".join, fields), "", ""]).encode()
        early = draw.choice([0, len(sent), len(sent), len(sent) // 2])
        leaves_at = draw.choice([0, 0, 1, 30_000]) if draw.random() < 0.08 else None
        one.began_s, raw, ended = time.time(), b"", True
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._proxies[number].addresses[0].port
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
        one.ended_s, one.answer = time.time(), message(raw, method, ended=ended)
        if one.answer is not None and one.answer.whole:
            self._judge(one)
        else:
            self._judge_sound(one, "did not come")

    async def _get(self, path):
        """Fetch as for cedos-get: any version, or an earlier one to go on with."""
        draw, fetcher, client = self._draw, self._fetcher, self._draw.choice(self._hosts)
        url = f"http://127.0.0.1:{self._port}{path}"
        version = draw.choice(["", *(had for at, had in self._versions if at == (client, url))])
        fields = [(name.lower(), value) for name, value in object_fetcher._ASKED.items()]
        one = Asked("", self._hosts.index(client), "GET", path, fields, began_s=time.time())
        try:
            found = await fetcher.find(client, url, version)
            with found.path.open("rb") as opened:
                await found.beyond(await found.known_size(), 1 << 40)
                found.check()
                body = opened.read()
        except (TransferError, FileNotFoundError):
            return
        one.ended_s, record = time.time(), found.record
        one.answer = Message(
            200, [(name, ", ".join(said)) for name, said in record.headers.items()], body, True
        )
        if self._versions.setdefault(((client, url), record.version), body) != body:
            self.wrong.append(("one version has two bodies", one))
        if version != record.version:
            self._judge(one)

    def _own(self, one):
        """Return what the origin was asked for this request."""
        return [
            each for each in self.origin.told
            if each.tag == one.tag and (one.tag or (
                each.path == one.path and one.began_s - SLACK_S <= each.at_s <= one.ended_s + 0.1
            ))
        ]  # fmt: skip

    def _judge(self, one):
        """Compare a whole answer with what the origin said."""
        self.whole += 1
        answer, own = one.answer, [each for each in self._own(one) if each.said is not None]
        why = [self._unlike(one, each) for each in own]
        if "" in why:
            return
        if joined(answer.fields, "proxy-status"):
            self._judge_sound(one, "was refused")
        elif any(why):
            self.wrong.append((str(why), one))
        elif answer.status != 504 or "only-if-cached" not in joined(one.fields, "cache-control"):
            self._judge_kept(one, own)

    def _judge_sound(self, one, what):
        own = self._own(one)
        restarts = any(one.began_s - 0.1 <= at_s <= one.ended_s + 0.1 for at_s in self._restarts)
        if (
            own
            and not restarts
            and all(each.said and each.said.whole and not each.faulty for each in own)
        ):
            self.wrong.append((f"what its origin answers {what}", one))

    @staticmethod
    def _unlike(one, told):
        """Return how an answer differs from the origin's; empty: not at all, None: it is another one."""
        answer, said = one.answer, told.said
        coded = "gzip" in joined(said.fields, "transfer-encoding")
        if not said.whole or (answer.status, answer.body) != (said.status, said.body):
            rest = (answer.status, said.status, answer.body) == (200, 200, told.full)
            return "" if rest and not coded else None  # its rest came by ranges
        if coded and "gzip" not in joined(answer.fields, "transfer-encoding"):
            return "it is coded and does not say so"
        hops = set(listed(joined(said.fields, "connection"))) - {"", "close", "keep-alive"}
        if joined(answer.fields, "via") and any(joined(answer.fields, name) for name in hops):
            return "fields for one connection"
        changed = HOP_BY_HOP | hops | {"age", "date", "content-length"}
        names = {name for name, _ in said.fields} - changed if one.tag else ()
        return ", ".join(
            each for each in names if joined(said.fields, each) != joined(answer.fields, each)
        )

    def _judge_kept(self, one, own):
        """Find an earlier answer that may answer this request, too."""
        why = ["of a user"] if one.method != "GET" or one.of_a_user() else [
            self._forbidden(one, each, own) for each in self.origin.told
            if (each.path, each.method) == (one.path, "GET") and each.said is not None
            and each.said.status == 200 and self._fits(one, each)
        ]  # fmt: skip
        if "" in why:
            self.kept += 1
        else:
            self.wrong.append((f"the origin never said that: {list(dict.fromkeys(why))}", one))

    @staticmethod
    def _fits(one, told):
        """Tell whether an answer is what an earlier one means for this request."""
        answer, full = one.answer, told.full
        if answer.status == 200:
            return answer.body == full
        if answer.status == 304 and (wanted := joined(one.fields, "if-none-match")):
            tag = joined(told.said.fields, "etag")
            known = [each.removeprefix("w/") for each in listed(wanted)]
            same = wanted == "*" or tag.removeprefix("W/") in known
            return joined(answer.fields, "etag") == tag and same
        if answer.status == 304:
            since_s = seconds(joined(one.fields, "if-modified-since"))
            changed_s = seconds(joined(told.said.fields, "last-modified"))
            return None not in (since_s, changed_s) and changed_s <= since_s
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", joined(one.fields, "range"))
        if answer.status != 206 or joined(one.fields, "if-range") or not wanted:
            return False
        first = int(wanted[1]) if wanted[1] else max(0, len(full) - int(wanted[2]))
        end = min(len(full), int(wanted[2]) + 1) if wanted[1] and wanted[2] else len(full)
        span = joined(answer.fields, "content-range")
        return (span, answer.body) == (f"bytes {first}-{end - 1}/{len(full)}", full[first:end])

    def _forbidden(self, one, told, own):
        """Return why an earlier answer may not answer this request; empty: it may."""
        said = told.said.fields
        asker = next((each for each in self._asked if each.tag == told.tag), one)
        if asker.host != one.host:
            return "another host's"
        if asker.of_a_user() or OF_USERS & {name for name, _ in told.fields}:
            return "another user's"
        rules = joined(said, "cache-control") + (
            joined(asker.fields, "cache-control") if asker is not one else ""
        )
        if re.search("no-store|private", rules) or joined(said, "set-cookie"):
            return "not to be kept"
        names = [each for each in listed(joined(said, "vary")) if each and each != "*"]
        if any(joined(told.fields, each) != joined(one.fields, each) for each in names):
            return f"varies by {names}"
        confirmed = [
            each for each in self.origin.told
            if each.said is not None and each.said.status == 304 and each.at_s >= told.at_s
            and (each.path, each.full) == (told.path, told.full)
        ]  # fmt: skip
        # (Of a wrong 304 the origin is the author, if it was asked.)
        wrong = [each for each in own if each.said.status == 304 and each.faulty]
        if any(
            CONDITIONS & {name for name, _ in each.fields}
            for each in own
            if each in confirmed + wrong
        ):
            return ""
        if re.search("no-cache|max-age=0", joined(one.fields, "cache-control")) or "*" in joined(
            said, "vary"
        ):
            return "not confirmed"
        fields, until_s = {}, 0.0
        for each in (told, *confirmed):
            fields.pop("age", None)
            fields |= {name: joined(each.said.fields, name) for name, _ in each.said.fields}
            until_s = max(until_s, fresh_until_s(list(fields.items()), each.over_s))
        late_s = one.began_s - until_s
        return "" if late_s < SLACK_S else f"stale since {late_s:.0f} s"

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
            came = {
                name: said for name, said in came.items() if name not in CONDITIONS - sent.keys()
            }
            if "cache-control" in came:  # it may be made stricter
                sent["cache-control"] = came["cache-control"]
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
async def test_programs_get_what_their_origin_says(ends, tmp_path, monkeypatch, seed, steps):
    walk, now, gmtime = Walk(ends, tmp_path, seed), time.time, time.gmtime
    monkeypatch.setattr(time, "time", lambda: now() + walk.passed_s)
    monkeypatch.setattr(
        time, "gmtime", lambda at_s=None: gmtime(time.time() if at_s is None else at_s)
    )
    monkeypatch.setattr(object_fetcher, "_AGAIN_S", (0.0,) * 6)
    await walk.start()
    try:
        await walk.run(steps)
    finally:
        await walk.close()
    assert not walk.wrong
    assert walk.whole > steps / 2
