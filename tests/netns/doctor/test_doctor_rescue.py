"""What the doctor says of rescues: as root, without BPF, without any privilege, without cgroups."""

from pathlib import Path

import pytest

from cedos.doctor import rescue
from cedos.doctor.finding import Files, FindingState
from cedos.steer.kernel import first_timeout, ipset


def test_here_everything_is_there():
    assert rescue.translation().state is FindingState.OK
    assert rescue.early(Files()).state is FindingState.OK


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("tmpfs / tmpfs rw 0 0\n")
    assert "no cgroup v2" in rescue.early(Files(tmp_path)).found

    def refused(*_):
        raise PermissionError(1, "no")

    monkeypatch.setattr(first_timeout, "try_out", refused)
    assert "CAP_BPF" in rescue.early(Files()).found
    monkeypatch.setattr(ipset, "_TYPE", b"hash:no,such\0")
    assert rescue.translation().state is FindingState.MISSING
