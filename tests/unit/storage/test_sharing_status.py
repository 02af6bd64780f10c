"""The status file of a requestor names its helpers by address; an old one names none."""

import errno
import json
from pathlib import Path

from cedos.storage.sharing_status import STATUS_FILES, neighbours, write_status


def test_helpers_are_named_by_address_while_the_file_is_fresh(tmp_path):
    assert neighbours(tmp_path) == {}
    file = tmp_path / STATUS_FILES["request"]
    write_status(file, {"role": "request", "helpers": [{"address": "169.254.1.5", "name": "bob"}]})
    assert neighbours(tmp_path) == {"169.254.1.5": "bob"}
    # Its process has died: it has written nothing for longer than five seconds.
    old = json.loads(file.read_text())
    file.write_text(json.dumps({**old, "at_s": old["at_s"] - 6.0}))
    assert neighbours(tmp_path) == {}


def test_a_full_disk_is_left_without_drafts(tmp_path, monkeypatch):
    """Fail to write: each second left one more empty file."""

    def full(_self, _target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    write_status(tmp_path / "share-help.json", {})
    assert list(tmp_path.iterdir()) == []
