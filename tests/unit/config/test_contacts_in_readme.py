"""Whom the daemon contacts by itself is said in the README: all of it, as it is by default."""

import pytest

from cedos.config import ProbesConfig
from emu.repository import ROOT

SECTION = (
    (ROOT / "README.md")
    .read_text()
    .partition("**What it contacts by itself.**")[2]
    .partition("**Budgets.**")[0]
)


@pytest.mark.parametrize("setting", ["target", "target_ipv6", "dns_name", "portal_url"])
def test_everybody_is_named(setting: str) -> None:
    assert str(getattr(ProbesConfig(), setting)) in SECTION


def test_how_often_is_what_the_defaults_are() -> None:
    default = ProbesConfig()
    assert f"every {default.interval_s:g} s while programs transfer" in SECTION
    assert f"else every {default.idle_interval_s:g} s" in SECTION
    assert f"every {default.asleep_interval_s / 60:g} min over a cellular network" in SECTION
    assert default.server == ""


@pytest.mark.parametrize("setting", ["dns = false", 'portal_url = ""', "enabled = false"])
def test_each_can_be_turned_off(setting: str) -> None:
    assert f"`{setting}`" in SECTION
    name = setting.partition(" ")[0]
    assert name in ProbesConfig.__struct_fields__
