"""What is said of interfaces and networks that are named but not there."""

from pathlib import Path

from cedos.config import BudgetConfig, Config, NetworkConfig, ProvidersConfig
from cedos.config.unknown_names import unknown_names
from cedos.model import Budget, Resource


def test_each_name_that_is_not_there_is_told() -> None:
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


def test_one_network_alone_is_told_as_one() -> None:
    budget = Budget("n", Resource.DATA, 4e9, "2036-12-01T00:00:00", networks=("nonexist",))
    (told,) = unknown_names(Config(), [budget], interfaces=[], networks=["eth0"])
    assert told.endswith("which is not there now; there is eth0")
