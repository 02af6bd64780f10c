"""`cedos rule`: what is asked of the daemon, and what people are shown."""

import pytest
from click.testing import CliRunner

from cedos.api.messages import RuleMessage
from cedos.commands import rule as rule_command
from cedos.commands.console.user_rules import index
from cedos.commands.rule import command, lines
from cedos.controller.rule import RuleRequest


class Played:
    """The daemon's answers, and what it was asked."""

    def __init__(self):
        self.asked = []
        self.removed = []
        self.known = []
        self.problems = []

    def rules(self):
        return self.known

    def add_rule(self, rule):
        self.asked.append(rule)
        return RuleMessage(number=3, rule=rule, network="wlan0", why="so")

    def remove_rule(self, number):
        self.removed.append(number)

    def status(self):
        return type("Status", (), {"rule_problems": self.problems})

    def networks(self):
        return [type("Network", (), {"name": name}) for name in ("wlan0", "lte0")]


@pytest.fixture
def daemon(monkeypatch):
    played = Played()
    monkeypatch.setattr(rule_command, "_client", lambda: played)
    monkeypatch.setattr(rule_command, "addresses", lambda name: ("192.0.2.7",))
    return played


def run(*arguments):
    return CliRunner().invoke(command, list(arguments))


def test_a_rule_is_added(daemon):
    done = run("add", "--host", "*.Updates.Example.", "--never", "metered")
    assert done.exit_code == 0, done.output
    assert daemon.asked == [
        RuleRequest(host="updates.example", never=("metered",), addresses=("192.0.2.7",))
    ]
    assert done.stdout.splitlines() == [
        "RULE  HOST             PORT  NETWORKS       NOW",
        "3     updates.example  all   never metered  wlan0",
        "A connection under a rule is refused if none of its networks is up.",
    ]
    assert done.stderr == ""
    run("add", "--host", "198.51.100.0/24", "--port", "22", "--only", "wlan0")
    assert daemon.asked[-1] == RuleRequest(host="198.51.100.0/24", port=22, only=("wlan0",))


@pytest.mark.parametrize(
    "arguments", [("add", "--host", "192.0.2.1", "--never", "lte0"), ("remove", "1"), ()]
)
def test_who_changes_rules_hears_that_they_are_not_kept(daemon, arguments):
    """The rule was gone after the next start, and the command had said nothing."""
    daemon.problems = ["rules.json cannot be written"]
    done = run(*arguments)
    assert done.exit_code == 0
    assert done.stderr.endswith("Warning: rules.json cannot be written\n")


def test_what_may_be_a_slip_is_said(daemon, monkeypatch):
    done = run("add", "--host", "198.51.100.1", "--never", "lte1")
    assert done.stderr == (
        "There is no network lte1 now. The networks are wlan0, lte0;"
        " metered, wifi, cellular, ethernet, helper stand for all of their kind.\n"
    )
    done = run("add", "--host", "updates.example", "--only", "Wi-Fi", "--only", "ETHERNET")
    assert daemon.asked[-1].only == ("wifi", "ethernet")
    assert done.stderr == ""
    monkeypatch.setattr(rule_command, "addresses", lambda name: ())
    done = run("add", "--host", "nowhere.example", "--never", "lte0")
    assert "nowhere.example leads to no address now" in done.stderr
    assert "no address known yet" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "x.example"), "either --only NETWORK or --never NETWORK"),
        (("--host", "x.example", "--only", "a", "--never", "b"), "either --only"),
        (("--host", "http://x.example/", "--never", "b"), "host must be a name"),
        (("--host", "192.0.2.999", "--never", "b"), "host must be a name"),
        (("--host", "fe80::1%b", "--never", "b"), "fe80::1 would be right"),
        (("--host", "x", "--port", "0", "--never", "b"), "0 is not in the range"),
        (("--never", "b"), "Missing option '--host'"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(daemon, arguments, said):
    done = run("add", *arguments)
    assert (done.exit_code, daemon.asked) == (2, [])
    assert said in done.stderr


def test_rules_are_listed_and_removed(daemon):
    assert "No rules." in run().stdout
    refused = RuleMessage(
        number=1,
        rule=RuleRequest(host="192.0.2.1", port=443, only=("wlan1",)),
        network=None,
        why="",
    )
    daemon.known = [refused]
    assert list(lines([refused]))[1].split() == (
        ["1", "192.0.2.1", "443", "only", "wlan1", "refused:", "no", "such", "network", "is", "up"]
    )
    assert '"number": 1' in run("--json").stdout
    assert run("remove", "1").stdout == "rule 1 is gone\n"
    assert daemon.removed == [1]


def test_which_rule_applies():
    rules = index(
        RuleMessage(number=number, rule=rule, network="wlan0", why="")
        for number, rule in enumerate(
            (
                RuleRequest(host="example.org", never=("lte0",)),
                RuleRequest(host="updates.example.org", never=("lte0",)),
                RuleRequest(host="198.51.100.0/24", only=("lte0",)),
                RuleRequest(host="example.org", port=22, only=("lte0",)),
            ),
            1,
        )
    )

    assert rules.applies("example.org", 443) == 1
    assert rules.applies("eu.updates.example.org", 443) == 2
    assert rules.applies("example.org", 22) == 4
    assert rules.applies("198.51.100.9", 443) == 3
    assert rules.applies("192.0.2.1", 443) is None
