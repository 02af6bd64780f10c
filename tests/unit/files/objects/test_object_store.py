"""Objects on the disk: a limit for all, one for each client, and what a restart finds."""

from pathlib import Path

import pytest

from cedos.errors import TransferError
from cedos.files.objects.object_store import KEPT_S, ObjectStore, StoredObject

pytestmark = pytest.mark.anyio
ME, OTHER, THIRD = "1" * 32, "2" * 32, "3" * 32


async def put(store: ObjectStore, client: str, name: str, data: bytes) -> StoredObject:
    found = store.create(client, f"http://a/{name}", name, {}, {}, reusable=True, size=len(data))
    found.write(data)
    await found.finish()
    store.write(client, found)
    return found


def names(store: ObjectStore, client: str) -> list[str]:
    return sorted(each.record.version for each in store.of(client))


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = ObjectStore(tmp_path / "objects", 1000)
    made.open()
    return made


async def test_what_was_used_longest_ago_goes_first(store: ObjectStore) -> None:
    for number, name in enumerate("abc"):
        (await put(store, ME, name, bytes(160))).record.used_unix_s -= 10 - number
    store.used(store.find(ME, "a"))  # type: ignore[arg-type]
    await put(store, ME, "d", bytes(160))
    assert names(store, ME) == ["a", "c", "d"]
    assert len(list((store._folder / ME).iterdir())) == 6


async def test_one_client_has_half_of_it(store: ObjectStore) -> None:
    with pytest.raises(TransferError, match="500 bytes"):
        store.create(ME, "http://a/", "v", {}, {}, reusable=True, size=501)
    await put(store, OTHER, "x", bytes(400))
    await put(store, ME, "a", bytes(400))
    await put(store, ME, "b", bytes(400))
    assert names(store, ME) == ["b"]
    assert names(store, OTHER) == ["x"]
    await put(store, THIRD, "c", bytes(400))
    assert names(store, OTHER) == []  # the oldest of all


async def test_what_is_under_way_or_handed_on_stays(store: ObjectStore) -> None:
    (await put(store, ME, "used", bytes(200))).users = 1
    coming = store.create(ME, "http://a/", "coming", {}, {}, reusable=True, size=200)
    with pytest.raises(TransferError, match="no room"):
        store.room(ME, 200)
    coming.fail("it broke off")
    store.room(ME, 200)


async def test_what_nobody_wanted_for_a_week_goes(store: ObjectStore) -> None:
    (await put(store, ME, "a", bytes(10))).record.used_unix_s -= KEPT_S + 1
    store.room(OTHER, 1)
    assert names(store, ME) == []


async def test_a_restart_finds_what_was_whole(store: ObjectStore, tmp_path: Path) -> None:
    await put(store, ME, "a", b"whole")
    store.create(ME, "http://a/", "half", {}, {}, reusable=True, size=9).write(b"half")
    torn = await put(store, ME, "torn", b"12345")
    torn.path.write_bytes(b"123")
    (tmp_path / "objects" / ME / "holiday.jpg").write_bytes(b"mine")
    store.close()
    again = ObjectStore(tmp_path / "objects", 1000)
    again.open()
    found = again.find(ME, "a")
    assert found is not None
    assert (found.whole, found.have, found.path.read_bytes()) == (True, 5, b"whole")
    assert names(again, ME) == ["a"]
    left = {each.name for each in (tmp_path / "objects" / ME).iterdir()}
    assert left == {found.record.id, f"{found.record.id}.json", "holiday.jpg"}


async def test_two_gateways_do_not_share_a_folder(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="cannot keep"):
        ObjectStore(tmp_path / "objects", 1000).open()
