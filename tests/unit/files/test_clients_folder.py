"""Who may use the folder of all clients, and whose folders each process sees."""

from pathlib import Path

import pytest

from cedos.files.clients_folder import ClientsFolder, StorePart

CLIENTS = [f"{first:02x}{'0' * 30}" for first in range(6)]


def nothing() -> None:
    pass


def test_one_process_at_a_time_has_it(tmp_path: Path) -> None:
    mine, theirs = (ClientsFolder(tmp_path / "store", None) for _ in range(2))
    mine.open(nothing)
    assert mine.is_open
    with pytest.raises(OSError, match="unavailable"):
        theirs.open(nothing)
    mine.close()
    mine.close()
    theirs.open(nothing)
    theirs.close()
    assert not list((tmp_path / "store").iterdir()), "a lock leaves nothing behind"


def test_who_cannot_read_it_does_not_keep_it(tmp_path: Path) -> None:
    folder = ClientsFolder(tmp_path, None)

    def fails() -> None:
        raise OSError("a bad disk")

    with pytest.raises(OSError, match="bad disk"):
        folder.open(fails)
    assert not folder.is_open
    folder.open(nothing)
    folder.close()


def test_parts_are_used_side_by_side_and_have_all_clients_between_them(tmp_path: Path) -> None:
    for client in CLIENTS:
        (tmp_path / client).mkdir()
    (tmp_path / "strange").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / ("f" * 32)).symlink_to(tmp_path / CLIENTS[0])
    parts = [ClientsFolder(tmp_path, StorePart(number, 2)) for number in range(2)]
    for part in parts:
        part.open(nothing)
    seen = [{each.name for each in part.of_clients()} for part in parts]
    assert seen == [set(CLIENTS[0::2]), set(CLIENTS[1::2])]
    with pytest.raises(OSError, match="unavailable"):
        ClientsFolder(tmp_path, StorePart(0, 2)).open(nothing)
    for part in parts:
        part.close()
    whole = ClientsFolder(tmp_path, None)
    assert {each.name for each in whole.of_clients()} == {*CLIENTS, "strange"}
