"""An answer that does not come is a reason to think again (dissertation, 4.3.4)."""

from dataclasses import replace

import pytest
from kit.controller import KEY, LTE, ONLY_LTE, WLAN, Script

from cedos.controller.commands import MoveConnection
from cedos.model import FlowSample
from predictors.base import Distribution


class Usually:
    """Wi-Fi answers within 0.06 s, nine times of ten; the tenth time it takes a minute."""

    features = ("size_bytes",)
    cellular_s = 0.3

    def predict(self, features, /):
        return {
            "wifi": Distribution((0.06,) * 18 + (60.0,) * 2),
            "cellular": Distribution((self.cellular_s,)),
        }


@pytest.fixture
def script():
    """A small answer is awaited over Wi-Fi."""
    script = Script(Usually())
    script.connection(movable=True)
    script.told(2000)
    return script


def moved_at(script, at_s, bytes_down=0):
    """A look at the sockets, and a decision; returns where connections were moved."""
    heard_s = 0.01 if bytes_down else 0.1
    sample = FlowSample(
        KEY, at_s, 1, 7, 0.02, 0.02, None, bytes_down, 300, 0, heard_s, 0, idle_ack_s=0.1
    )
    script.sampled(sample)
    script.wait(at_s + 0.001)
    return [each.strategy for each in script.given(MoveConnection)]


def test_silence_is_news_every_200_ms(script):
    moved_at(script, 10.0)
    flow = script.flow()
    assert not flow.overdue(22.0)
    assert flow.overdue(22.3)
    assert not flow.overdue(22.4)
    assert flow.overdue(22.6)
    assert not flow.overdue(60.0), "a program that does not read is no reason to hurry for ever"


def test_a_lost_network_is_a_reason_at_once(script):
    assert moved_at(script, 10.0) == []
    script.networks(replace(WLAN, up=False), LTE, at_s=10.1)
    script.wait(10.1)
    assert [each.strategy for each in script.given(MoveConnection)] == [ONLY_LTE]


def test_the_next_transfer_is_awaited_anew(script):
    moved_at(script, 10.0)
    script.told(2500, at_s=22.0)
    assert script.flow().waited_s(22.0) == 0.0
