"""`cedos choose` and `cedos prefer`: the networks for one transfer, and what the phone is for."""

import json

import pytest

from cedos.api.messages import parse
from cedos.api.programs import ChoiceRequest
from cedos.commands.console import manual
from cedos.errors import ConfigError
from cedos.model import Direction, PhoneUse, Urgency


def test_the_networks_are_printed_one_to_a_line(control, fake_daemon, cedos):
    asked = cedos("choose", "--size", "4kB", "--redundant")
    assert (asked.exit_code, asked.stdout) == (0, "wlan0\n")
    asked = cedos("choose", "--size", "2GB", "--up", "--background", "--deadline", "2min")
    assert asked.stdout == "wlan0\n"
    assert fake_daemon.choices == [
        ChoiceRequest(size_bytes=4000, redundant=True),
        ChoiceRequest(
            size_bytes=2 * 10**9,
            direction=Direction.UP,
            urgency=Urgency.BACKGROUND,
            deadline_s=120.0,
        ),
    ]
    assert json.loads(cedos("choose", "--size", "1", "--json").stdout)["number"] == 8
    assert cedos("choose").exit_code == 2


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("4", '4 bytes, as there is no unit (such as "4MB")\n'),
        ("1", '1 byte, as there is no unit (such as "1MB")\n'),
        ("4kB", ""),
        ("4B", ""),
        ("3000000", ""),
    ],
)
def test_a_person_is_told_how_a_size_without_unit_is_read(
    size, told, control, fake_daemon, cedos, monkeypatch
):
    assert cedos("choose", "--size", size).stderr == "", "a script is left alone"
    monkeypatch.setattr(manual, "at_a_terminal", lambda: True)
    asked = cedos("choose", "--size", size)
    assert (asked.stdout, asked.stderr) == ("wlan0\n", told)


def test_what_was_sent_already_may_be_asked_about(control, fake_daemon, cedos):
    again = ("choose", "--size", "4kB", "--redundant", "--sent", "wlan0")
    assert cedos(*again, "--waited", "300ms").exit_code == 0
    assert fake_daemon.choices == [
        ChoiceRequest(size_bytes=4000, redundant=True, sent_over="wlan0", waited_s=0.3)
    ]
    refused = cedos(*again)
    assert refused.exit_code == 2
    assert "--sent and --waited belong together" in refused.stderr


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not valid JSON"),
        (b"{}", "missing required field `size_bytes`"),
        (b'{"size_bytes": 0}', r"`int` >= 1 - at `\$.size_bytes`"),
        (b'{"size_bytes": 1, "sise": 3}', "unknown field `sise`"),
        (b'{"size_bytes": 1, "deadline_s": -1}', r"> 0.0 - at `\$.deadline_s`"),
        (b'{"size_bytes": 1, "redundant": "yes"}', "Expected `bool`"),
    ],
)
def test_bad_requests(body, message):
    with pytest.raises(ConfigError, match=message):
        parse(body, ChoiceRequest, "choice")


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
