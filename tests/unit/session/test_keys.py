"""Key files: who may read them, what is refused, and that a pinned key stays."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import ConfigError
from cedos.session import keys

KEY = bytes(range(32))


def test_an_own_key_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "new" / "session.key"
    made = keys.own(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keys.own(path).private == made.private == keys.read_own(path).private
    assert [each.name for each in path.parent.iterdir()] == ["session.key"]
    assert keys.own(tmp_path / "other.key").private != made.private


def test_a_key_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "session.key"
    first = keys.own(path)
    keys._write_new(path, b"another one")
    assert keys.own(path).private == first.private


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        (keys.to_text(KEY), 0o640, "chmod 600"),
        (keys.to_text(KEY), 0o604, "chmod 600"),
        ("", 0o600, "43 letters"),
        ("ü" * 43, 0o600, "not a private key"),
        (keys.to_text(KEY)[:-1], 0o600, "43 letters"),
    ],
)
def test_what_is_no_safe_key_is_refused(tmp_path, content, mode, message):
    path = tmp_path / "session.key"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=message) as raised:
        keys.own(path)
    assert str(path) in str(raised.value)


def test_a_missing_key_and_a_folder_that_is_a_file(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        keys.read_own(tmp_path / "no.key")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        keys.own(tmp_path / "file" / "session.key")


@given(st.binary(min_size=32, max_size=32))
def test_key_texts(key):
    text = keys.to_text(key)
    assert len(text) == 43
    assert keys.from_text(text) == key
    for wrong in (text[:-1], text + "A", text[:-1] + "=", text[:-1] + "+", "é" + text[1:]):
        with pytest.raises(ValueError, match="key"):
            keys.from_text(wrong)


def test_one_key_has_one_text():
    """The last letter carries two bits that must be zero: no second spelling of a key."""
    text = keys.to_text(KEY)
    accepted = 0
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        try:
            keys.from_text(text[:-1] + letter)
        except ValueError:
            continue
        accepted += 1
    assert accepted == 16


def test_a_file_of_names_that_is_wrong_names_each_problem(tmp_path):
    path = tmp_path / "clients.toml"
    path.write_text(f'[hosts]\none = "short"\ntwo = "{keys.to_text(KEY)}"\nthree = "x"\n')
    with pytest.raises(ConfigError) as raised:
        keys.read_names(path)
    assert '"one"' in str(raised.value)
    assert '"three"' in str(raised.value)
    assert '"two"' not in str(raised.value)
    for text in ("[host]\n", "hosts = 1\n", "[hosts\n", "[hosts]\none = 1\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="clients"):
            keys.read_names(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="clients"):
        keys.read_names(path)


def test_where_keys_are(monkeypatch, tmp_path):
    monkeypatch.delenv("CEDOS_USER_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys.own_key_path() == tmp_path / "cedos" / "session.key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert keys.own_key_path() == tmp_path / ".config" / "cedos" / "session.key"


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("processor : 0\nflags\t\t: fpu aes avx\n", True),
        ("Features\t: fp asimd aes pmull\n", True),
        ("flags : fpu vaes\n", False),
        ("", False),
    ],
)
def test_hardware_is_read_from_cpuinfo(tmp_path, text, has):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert keys.hardware_aes(path) is has
    assert keys.hardware_aes(tmp_path / "none") is False
