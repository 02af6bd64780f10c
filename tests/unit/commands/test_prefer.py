"""`cedos prefer`: what the phone is for, in words."""

import pytest

from cedos.model import PhoneUse


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("only without Wi-Fi", PhoneUse.WITHOUT_WIFI),
        ("only without wifi", PhoneUse.WITHOUT_WIFI),
        ("ONLY", PhoneUse.WITHOUT_WIFI),
        ("to save time", PhoneUse.TO_SAVE_TIME),
        ("freely", PhoneUse.FREELY),
        ("as configured", None),
    ],
)
def test_it_is_said_in_words(cedos, control, fake_daemon, words, meant):
    fake_daemon.said_phone = PhoneUse.FREELY
    done = cedos("prefer", *words.split())
    assert done.exit_code == 0, done.stderr
    assert fake_daemon.said_phone == meant
    assert f"The phone is used {meant or PhoneUse.TO_SAVE_TIME} (" in done.stdout


def test_it_shows_and_refuses(cedos, control, fake_daemon):
    assert cedos("prefer").stdout.startswith("The phone is used to save time (as configured).")
    assert '"phone": "to save time"' in cedos("prefer", "--json").stdout
    refused = cedos("prefer", "sometimes")
    assert refused.exit_code == 2
    assert '"only without Wi-Fi"' in refused.stderr
    assert fake_daemon.said_phone is None
