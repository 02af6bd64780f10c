"""A host gets objects of a changing origin: each is what it said, for as long as it said (RFC 9111)."""

import asyncio
import random
import re
import shutil
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from kit.changing_origin import ChangingOrigin, joined, listed, seconds

from cedos.apps.files.objects import object_fetcher
from cedos.apps.files.objects.object_fetcher import ObjectFetcher
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.errors import TransferError

HOST = "1" * 32
SLACK_S = 2.5


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


@dataclass
class Got:
    """An object that the host got."""

    path: str
    body: bytes
    began_s: float
    ended_s: float


class Walk:
    """`wrong` has what went wrong; `whole` and `kept` count what came, and what came unasked."""

    def __init__(self, folder, seed):
        self._folder, self._draw = folder, random.Random(f"walk {seed}")
        self.origin, self.passed_s, self.wrong = ChangingOrigin(seed), 0.0, []
        self._versions, self._stores = {}, 0
        self.whole = self.kept = 0
        self._new_fetcher()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self):
        await self.fetcher.close()
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            await self.origin(reader, writer)
        finally:
            writer.close()

    def _store(self):
        return self._folder / str(self._stores)

    def _new_fetcher(self):
        self.fetcher = ObjectFetcher(ObjectStore(self._store(), 10**9), lambda *_: "")

    async def run(self, steps):
        tasks, draw = set(), self._draw
        for number in range(steps):
            kind, path = draw.random(), draw.choice(list(self.origin.there))
            if kind < 0.05:
                self.origin.there[path].touch()
            elif kind < 0.1:
                self.origin.renew(path)
            elif kind < 0.3:
                await asyncio.wait_for(asyncio.gather(*tasks), 60)
                tasks.clear()
                self.passed_s += draw.choice([4, 20, 50, 300, 2_000])
            elif kind < 0.33:
                await self._restart(tasks, killed=draw.random() < 0.5)
                tasks.clear()
            else:
                tasks.add(asyncio.create_task(self._get(path)))
            if len(tasks) > draw.choice([0, 0, 3]) or number + 1 == steps:
                await asyncio.wait_for(asyncio.gather(*tasks), 60)
                tasks.clear()

    async def _restart(self, tasks, *, killed):
        """Begin again with what lies on the disk: at this instant (kill -9), or after an orderly end."""
        before = self._store()
        self._stores += 1
        if killed and before.exists():
            shutil.copytree(before, self._store())
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        await self.fetcher.close()
        if not killed and before.exists():
            before.rename(self._store())
        self._new_fetcher()

    async def _get(self, path):
        """Fetch any version, or an earlier one to go on with."""
        url, began_s = f"http://127.0.0.1:{self._port}{path}", time.time()
        version = self._draw.choice(["", *(had for at, had in self._versions if at == url)])
        try:
            found = await self.fetcher.find(HOST, url, version)
            with found.path.open("rb") as opened:
                await found.wait_beyond(await found.known_size())
                body = opened.read()
        except (TransferError, FileNotFoundError):
            return
        one = Got(path, body, began_s, time.time())
        if self._versions.setdefault((url, found.record.version), body) != body:
            self.wrong.append(("one version has two bodies", one))
        if version != found.record.version:
            self._judge(one)

    def _judge(self, one):
        self.whole += 1
        told = [
            each for each in self.origin.told if each.path == one.path and each.said is not None
        ]
        bodies = [each for each in told if self._is_of(one.body, each)]
        confirms = {each.full for each in bodies}
        for each in told:
            if each.at_s < one.began_s - SLACK_S:
                continue
            # (Of a wrong 304 the origin is the author.)
            if each.said.status == 304 and (each.faulty or each.full in confirms):
                return
            if each.said.status in (200, 206) and self._is_of(one.body, each):
                return
        why = [self._forbidden(one, each, told) for each in bodies]
        if "" in why:
            self.kept += 1
        else:
            self.wrong.append((f"the origin never said that: {list(dict.fromkeys(why))}", one))

    @staticmethod
    def _is_of(body, each):
        """Tell whether an answer is about a body: all that the origin has, or that it said it had."""
        said = each.said
        return body == each.full or (said.status == 200 and said.whole and said.body == body)

    @staticmethod
    def _forbidden(one, had, told):
        """Return why an earlier answer may not answer now; empty: it may."""
        said = had.said.fields
        if re.search("no-store|private", joined(said, "cache-control")) or joined(
            said, "set-cookie"
        ):
            return "not to be kept"
        if "*" in joined(said, "vary"):
            return "not confirmed"
        confirmed = [
            each for each in told
            if each.said.status == 304 and each.at_s >= had.at_s
            and (each.full == had.full or each.faulty)  # of a wrong one the origin is the author
        ]  # fmt: skip
        fields, until_s = {}, 0.0
        for each in (had, *confirmed):
            fields.pop("age", None)
            fields |= {name: joined(each.said.fields, name) for name, _ in each.said.fields}
            until_s = max(until_s, fresh_until_s(list(fields.items()), each.over_s))
        late_s = one.began_s - until_s
        return "" if late_s < SLACK_S else f"stale since {late_s:.0f} s"


@asynccontextmanager
async def walking(folder, monkeypatch, seed):
    walk, now = Walk(folder, seed), time.time
    monkeypatch.setattr(time, "time", lambda: now() + walk.passed_s)
    monkeypatch.setattr(object_fetcher, "_AGAIN_S", (0.0,) * 6)
    await walk.start()
    try:
        yield walk
    finally:
        await walk.close()


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        *((each, 100) for each in range(3)),
        *(pytest.param(each, 400, marks=pytest.mark.long) for each in range(3, 60)),
    ],
)
async def test_a_host_gets_what_the_origin_says(tmp_path, monkeypatch, seed, steps):
    async with walking(tmp_path, monkeypatch, seed) as walk:
        await walk.run(steps)
    assert not walk.wrong
    assert walk.whole > steps / 5


async def test_what_an_origin_announces_is_what_it_said(tmp_path, monkeypatch):
    """It announced a byte less than it sent, and confirmed that version later."""
    async with walking(tmp_path, monkeypatch, 0) as walk:
        vars(walk.origin.there["/0"]).update(
            size=200_000, tags="W/", dated="right", rules="max-age=60", by=(), for_all=False, clock_s=0,
            expires_s=None, age=None, cookie=False, conditions=True, framing="length", changes=False,
        )  # fmt: skip
        answer = walk.origin._answer

        def announce_less(*asked):
            raw, reset = answer(*asked)
            return raw.replace(b"Content-Length: 200000", b"Content-Length: 199999"), reset

        monkeypatch.setattr(walk.origin, "_answer", announce_less)
        monkeypatch.setattr(walk.origin, "_faults", 0)
        for walk.passed_s in (0, 10, 300):
            await walk._get("/0")
    first, *confirmed = walk.origin.told
    assert (len(first.full), len(first.said.body)) == (200_000, 199_999)
    assert [each.said.status for each in confirmed] == [304]
    assert (walk.whole, walk.kept, walk.wrong) == (3, 1, [])
    walk._judge(Got("/0", first.full[:-2], time.time(), time.time()))
    assert len(walk.wrong) == 1
