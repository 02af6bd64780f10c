"""The configuration: defaults that are explained, values that are checked, directories that move."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos import config as config_module
from cedos.budget_kinds import Resource
from cedos.config import (
    SHIPPED_FILE,
    BudgetConfig,
    Config,
    DecisionConfig,
    NetworkConfig,
    ProvidersConfig,
    Section,
    load,
    unknown_names,
)
from cedos.config.directories import Directories, directories, user_folder
from cedos.config.sections import SteeringConfig
from cedos.errors import ConfigError
from cedos.model import Budget, NetworkKind, PhoneUse

SECTIONS = {
    field.encode_name: field.type
    for field in msgspec.structs.fields(Config)
    if isinstance(field.type, type) and issubclass(field.type, Section)
}


def write(tmp_path, text):
    path = tmp_path / "cedos.toml"
    path.write_text(text)
    return path


def test_the_shipped_file_is_the_defaults():
    assert load(SHIPPED_FILE) == Config()


@pytest.mark.parametrize("section", SECTIONS)
def test_the_shipped_file_explains_every_key(section):
    text = SHIPPED_FILE.read_text()
    there = tomllib.loads(text)[section]
    body = re.split(r"^\[", text.partition(f"\n[{section}]\n")[2], flags=re.MULTILINE)[0]
    for field in msgspec.structs.fields(SECTIONS[section]):
        if field.default is None:
            assert re.search(rf"^# {field.encode_name} = ", body, re.MULTILINE), field.encode_name
        else:
            assert field.encode_name in there


def test_the_shipped_file_explains_networks():
    text = SHIPPED_FILE.read_text()
    example = re.findall(
        r"^# (\[networks\..*|(?:name|kind|metered|ignore|money_per_mb) = .*)$", text, re.MULTILINE
    )
    networks = config_module.toml_file.parse("\n".join(example), Config, name="example").networks
    assert networks == {
        "wlan0": NetworkConfig(name="home", kind=NetworkKind.WIFI, metered=False, money_per_mb=0.01)
    }
    assert len(example) == 1 + len(msgspec.structs.fields(NetworkConfig))


def test_loading(tmp_path, monkeypatch):
    path = write(
        tmp_path,
        """
[networks.usb0]
kind = "cellular"
name = "phone"
[decision]
objective = "balanced"
phone = "freely"
[predictors]
model = "m.json"
[providers.series]
usb0 = "place/c.csv"
[providers.started_at_s]
usb0 = 3
""",
    )
    config = load(path)
    assert config.decision == DecisionConfig(objective="balanced", phone=PhoneUse.FREELY)
    assert config.predictors.model_path == tmp_path / "m.json"
    assert config.providers.series == {"usb0": tmp_path / "place/c.csv"}
    assert config.providers.started_at_s == {"usb0": 3.0}
    assert config.network_overrides() == {
        "usb0": {"kind": "cellular", "name": "phone", "ignore": False}
    }
    monkeypatch.setattr(config_module, "DEFAULT_FILE", path)
    assert load() == config
    monkeypatch.setattr(config_module, "DEFAULT_FILE", tmp_path / "none")
    assert load() == Config()
    assert load().predictors.model_path is None


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('[networks.a]\nname="x"\n[networks.x]', 1, 'two networks are called "x"'),
        ("[networks.a-name-too-long-for-linux]", 1, "must be an interface's name"),
        ('[networks.a]\nname = ""', 2, "must be a short name"),
        ("[probes]\n\ninterval_s = 0", 3, "must be a number from 0.1 to 3600, not 0"),
        ("[probes]\ninterval_s = 60", 1, "idle_interval_s (30) must not be shorter"),
        ("[probes]\nidle_interval_s = 1", 2, "idle_interval_s (1) must not be shorter"),
        ('[probes]\n\ntarget = "::1"', 3, 'target must be an IPv4 address such as "1.1.1.1"'),
        ('[probes]\ntarget_ipv6 = "localhost"', 2, "target_ipv6 must be an IPv6 address"),
        ('[probes]\ndns_name = "a b"', 2, "probes.dns_name must be text"),
        ("[predictors]\nmodel = ''", 2, "predictors.model must be text"),
    ],
)
def test_refused(tmp_path, text, line, message):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.sampled_from(
        [(section, key) for section, kind in SECTIONS.items() for key in kind.__struct_fields__]
    ),
    st.integers(0, 5),
    st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12),
)
def test_misspelt_keys_are_refused_at_their_line(place, blank_lines, addition):
    section, key = place
    text = f"# c\n[{section}]\n" + "\n" * blank_lines + f"{key}{addition} = 1\n"
    if key + addition in SECTIONS[section].__struct_fields__:
        return
    with pytest.raises(
        ConfigError, match=rf"^c\.toml:{3 + blank_lines}: unknown setting \w+ in \[{section}\]"
    ):
        config_module.toml_file.parse(text, Config, name="c.toml")


def test_each_name_that_is_not_there_is_told():
    config = Config(
        networks={
            "wlan0": NetworkConfig(name="home"),
            "wlan9": NetworkConfig(),
            "docker0": NetworkConfig(ignore=True),
        },
        providers=ProvidersConfig(series={"lte0": Path("x"), "ppp0": Path("y")}),
        budgets={"phone": BudgetConfig(until="2036-12-01", data="4GB", networks=["hom"])},
    )
    budgets = [
        Budget("phone", Resource.DATA, 4e9, "2036-12-01T00:00:00", networks=("hom", "lte0")),
        Budget("all", Resource.DATA, 4e9, "2036-12-01T00:00:00"),
    ]
    assert unknown_names(
        config, budgets, interfaces=["wlan0", "lte0"], networks=["home", "lte0"]
    ) == [
        "[networks.wlan9] names the interface wlan9, which is not there now; did you mean wlan0?",
        "[providers] series.ppp0 names the interface ppp0, which is not there now; there are lte0, wlan0",
        'the budget "phone" names the network hom, which is not there now; did you mean home?',
    ]


def test_directories():
    usual = directories({})
    assert usual == Directories(Path("/var/lib/cedos"), Path("/run/cedos"))
    assert usual.socket == Path("/run/cedos/control.sock")
    assert usual.pid_file == Path("/run/cedos/daemon.pid")
    assert usual.history == Path("/var/lib/cedos/history.sqlite")
    # A service that asks the daemon has folders of its own.
    service = {"STATE_DIRECTORY": "/s/a:/s/b", "RUNTIME_DIRECTORY": "/r"}
    assert directories(service) == usual
    own = {**service, "CEDOS_STATE_DIR": "/x", "CEDOS_RUNTIME_DIR": "/y"}
    assert directories(own) == Directories(Path("/x"), Path("/y"))
    with pytest.raises(ConfigError, match="CEDOS_STATE_DIR must be an absolute path, not x"):
        directories({"CEDOS_STATE_DIR": "x"})


def test_a_users_own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder("config", {}) == tmp_path / ".config" / "cedos"
    assert user_folder("state", {}) == tmp_path / ".local" / "state" / "cedos"
    assert user_folder("cache", {"XDG_CACHE_HOME": "/c"}) == Path("/c/cedos")
    emulated = {"XDG_CACHE_HOME": "/c", "CEDOS_USER_DIR": "/laptop"}
    assert user_folder("cache", emulated) == Path("/laptop/cache")
    with pytest.raises(ConfigError, match="CEDOS_USER_DIR must be an absolute path, not x"):
        user_folder("config", {"CEDOS_USER_DIR": "x"})


@pytest.mark.parametrize(
    "value", ["", "always", "after 0s", "after 0.5s", "after 601s", "after 3 s"]
)
def test_another_word_for_when_to_close_them_is_refused(value):
    with pytest.raises(msgspec.ValidationError, match='"after 3s"'):
        msgspec.convert({"close_stuck": value}, SteeringConfig)
