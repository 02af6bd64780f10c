"""Whatever resolvers, users and the kernel do: what programs learn of ruled names is under the rules."""

import os
from collections import OrderedDict
from dataclasses import replace
from ipaddress import ip_address
from random import Random

import pytest
from kit.controller import KEY, LTE, WLAN, Script, size_of

from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.held_answers import LONGEST_S
from cedos.controller.rule import RuleRequest
from cedos.model import Direction

OWN = ip_address("10.0.0.53")
NETWORKS = (replace(WLAN, resolvers=(OWN,)), LTE)
HOSTS = ("dl.ruled.example", "ruled.example", "other.example")
# No name leads to an earlier one.
NAMES = ("dl.ruled.example", "x.ruled.example", "y.other.example", "evil.example")
NAMES += ("ruled.example", "other.example", "cdn.example", "edge.example")
FEW = [f"198.18.0.{number}" for number in range(1, 7)]
STEPS = 60
# A longer search: CEDOS_WALKS=1000:5000.
FIRST, END = map(int, os.environ.get("CEDOS_WALKS", "0:16").split(":"))


def is_below(name, host):
    return name == host or name.endswith("." + host)


class NamesUnderRules:
    """The controller, a kernel that may refuse or be late, and resolvers.

    Attributes:
        kernel: where the kernel leads each place.
        orders: what it is still to do; ends: of what it has done, the controller knows nothing yet.
        owners: by name those that resolvers of this host called it an alias of.
        kept_led: by rule the aliases that were kept over a restart.
        told: by rule and address, what they told about it, the latest at the end.
        true: all of these, however long ago.
    """

    def __init__(self):
        self.rules, self.kept, self.kept_led = {}, {}, {}
        self.begin()

    def begin(self):
        self.script = Script(rules=self.kept)
        self.kernel, self.orders, self.ends = {}, [], []
        self.waiting, self.asked, self.number = {}, [], 0
        self.owners = {}
        self.hosts = on.DnsReply(0, 0, False, "", 1)
        self.told = {n: OrderedDict.fromkeys(each.addresses) for n, each in self.rules.items()}
        self.true = {n: set(each) for n, each in self.told.items()}
        # What was told of each name before: a rule that comes later covers it.
        self.before, self.earlier = [], []
        self.take(self.script._given)
        self.tell(on.NetworksChanged(NETWORKS))

    # -- what happens -------------------------------------------------------------------------

    def tell(self, *events):
        self.take(self.script.tell(*events))

    def take(self, commands):
        for each in commands:
            match each:
                case give.SetRuled():
                    self.orders.append(each)
                case give.HoldAnswers():
                    self.ends.append(on.CommandDone(each))
                case give.LookUpName(name):
                    self.asked.append(name)
                case give.KeepRules(rules):
                    self.kept = rules
                case give.ReleaseAnswer(number, passes):
                    replies = self.waiting.pop(number)[1]
                    if passes:
                        self.check_released(replies)

    def carry_out(self, refused=(), gone=False):
        if not self.orders:
            return
        order = self.orders.pop(0)
        failed = tuple(place for n, place in enumerate(order.wanted) if n % 4 in refused)
        for place, network in order.wanted.items():
            if place in failed:
                if gone:
                    self.kernel.pop(place, None)
            elif network is None:
                self.kernel.pop(place, None)
            else:
                self.kernel[place] = network
        self.ends.append(on.CommandFailed(order, failed) if failed else on.CommandDone(order))

    def kernel_works(self, refused, gone, ends):
        self.carry_out(refused, gone)
        if ends and self.ends:
            self.tell(self.ends.pop(0))

    def all_is_done(self):
        self.pass_s(3.0)
        self.take(self.script.decide())
        while self.orders or self.ends:
            self.carry_out()
            if self.ends:
                self.tell(self.ends.pop(0))
            if not self.orders and not self.ends:
                self.pass_s(3.0)
                self.take(self.script.decide())
        self.check_settled()

    def ruled(self, host, port):
        networks = {"only" if host == "other.example" else "never": ("lte0",)}
        request = RuleRequest(host=host, port=port, **networks)
        number = self.script.controller.ruled.rules.number_for(request)
        fresh = number not in self.rules
        self.rules[number] = request
        if fresh:
            self.told[number], self.true[number] = OrderedDict(), set()
            for reply in (*self.before, self.hosts):
                for each in reply.names:
                    self.note_of(number, each)
            # Of several names it is not known which was told last: more rules may leave room for 8.
            if len(self.true[number]) > 8:
                self.told[number].clear()
        self.shrink()
        self.tell(on.RuleSet(number, request))

    def many_rules(self, count):
        for n in range(count):
            request = RuleRequest(host=f"n{n}.test", never=("lte0",))
            number = self.script.controller.ruled.rules.number_for(request)
            self.rules[number] = request
            self.told.setdefault(number, OrderedDict())
            self.true.setdefault(number, set())
            self.tell(on.RuleSet(number, request))
        self.shrink()

    def unruled(self, which):
        if self.rules:
            number = sorted(self.rules)[which % len(self.rules)]
            del self.rules[number], self.told[number], self.true[number]
            self.kept_led.pop(number, None)
            self.tell(on.RuleSet(number, None))

    def resolver_answers(self, reply, held, user):
        self.note(reply)
        self.answers((reply,), held=held, user=user)

    def stub_is_answered(self, reply, held, user):
        bare = replace(reply, aliases=(), owners=())
        told = reply if self.about(bare.names[0]) else bare
        self.note(told)
        self.answers(relayed=(reply,), told=(told,), held=held, user=user)

    def stranger_answers(self, reply, user):
        self.answers(claimed=(reply,), user=user)

    def connection_names(self, name, address):
        key = replace(KEY, remote=ip_address(address))
        self.tell(on.SizeLearned(key, Direction.DOWN, size_of(3000), name))

    def look_up_ends(self, reply, succeeds):
        if self.asked:
            name = self.asked.pop(0)
            owners = tuple(each for each in reply.owners if each.name != name)
            reply = replace(reply, name=name, owners=owners)
            if succeeds:
                self.note(reply)
            told = {4: reply, 6: replace(reply, addresses=(), kind=28)} if succeeds else {}
            self.tell(on.NameLookedUp(reply.name, told))

    def hosts_file_changes(self, name, addresses):
        known = tuple(map(ip_address, addresses))
        self.hosts = on.DnsReply(0, 0, False, name, 1, known)
        self.note(self.hosts)
        self.earlier.append(self.before.pop())
        self.tell(on.HostsFileRead({name: known}))

    def networks_change(self, which):
        self.tell(on.NetworksChanged(tuple(NETWORKS[each] for each in which)))

    def pass_s(self, seconds):
        until_s = self.script.now_s + seconds
        while (at_s := self.script.controller.next_timer_s()) is not None and at_s <= until_s:
            self.take(self.script.tell(on.TimerFired(), at_s=max(at_s, self.script.now_s)))
        self.script.now_s = until_s

    def restarts(self):
        known = self.script.controller.ruled.rules.rules
        self.rules = {int(n): known[int(n)] for n in self.kept if n != "aliases"}
        names = {*NAMES, *self.owners}
        self.kept_led = {
            number: {name for name in names if number in self.about(on.RecordOwner(name))}
            for number in self.rules
        }
        self.begin()

    # -- what is known ------------------------------------------------------------------------

    def answers(self, believed=(), claimed=(), relayed=(), told=(), *, held=True, user):
        number = None
        if held:
            number = self.number = self.number + 1
            replies = (*believed, *claimed, *told)
            self.waiting[number] = self.script.now_s + LONGEST_S, replies
        self.tell(on.AnswersRead(number, believed, claimed, (), relayed, user))

    def names_of(self, owner):
        """Return a name, and all that lead to it."""
        found, due = set(), [owner.name]
        while due:
            name = due.pop()
            if name not in found:
                found.add(name)
                due += self.owners.get(name, ())
        return found

    def about(self, owner):
        """Return the rules that a name with records is under."""
        names = self.names_of(owner)
        return [
            number
            for number, each in self.rules.items()
            if any(is_below(name, each.host) for name in names)
            or not names.isdisjoint(self.kept_led.get(number, ()))
        ]

    def note(self, reply):
        """Note what a resolver of this host has told."""
        self.before.append(reply)
        for each in reply.names:
            for alias in each.aliases:
                self.owners.setdefault(alias, set()).add(each.name)
        for each in reply.names:
            for number in self.about(each):
                self.note_of(number, each)

    def note_of(self, number, owner):
        if number not in self.about(owner):
            return
        for address in map(str, owner.addresses):
            self.true[number].add(address)
            self.told[number][address] = None
            self.told[number].move_to_end(address)
        self.shrink()

    @property
    def most(self):
        return min(256, 1024 // max(len(self.rules), 1))

    def shrink(self):
        for told in self.told.values():
            while len(told) > self.most // 2:
                told.popitem(last=False)

    # -- what is promised ---------------------------------------------------------------------

    def led(self, number, address):
        place = give.place_of(ip_address(address), self.rules[number].port)
        network = self.kernel.get(place)
        only = {"wlan0"} if self.rules[number].never else {"lte0"}
        return network in {*only, give.NOWHERE}

    def check_released(self, replies):
        for each in (owner for reply in replies for owner in reply.names):
            for number in self.about(each):
                for address in each.addresses:
                    assert self.led(number, address), f"{address} of rule {number}: {each}"

    def check_settled(self):
        known = self.script.controller.ruled.rules.rules
        assert known.keys() == self.rules.keys()
        for number, told in self.told.items():
            for address in told:
                assert address in known[number].addresses, f"{address} of {number} is pushed out"
                assert self.led(number, address), f"{address} of rule {number}"
        places = {
            give.place_of(ip_address(address), each.port)
            for each in known.values()
            for address in each.addresses
        }
        assert self.kernel.keys() == places

    def none_is_ruled_that_was_not_told(self):
        for number, each in self.script.controller.ruled.rules.rules.items():
            # (What is known of an alias counts from when it is one.)
            for address in set(each.addresses) - self.true[number]:
                owners = (one for r in (*self.before, *self.earlier) for one in r.names)
                told = [one for one in owners if ip_address(address) in one.addresses]
                assert any(number in self.about(one) for one in told), address

    def all_is_bounded(self):
        ruled, held = self.script.controller.ruled, self.script.controller.answers
        assert all(len(each.addresses) <= self.most for each in ruled.rules.rules.values())
        assert len(held._held) <= 128
        assert len(held._confirmations) <= 256
        assert ruled.rules._aliases.keys() <= self.rules.keys()

    def none_waits_for_ever(self):
        late = [n for n, each in self.waiting.items() if each[0] < self.script.now_s]
        assert not late


def few(random):
    return random.sample(FEW, random.randint(0, 3))


def reply(random):
    chain = sorted(random.sample(NAMES, random.choice((1, 1, 1, 2, 3))), key=NAMES.index)
    addresses = few(random)
    if random.random() < 0.1:
        begin, count = random.randint(0, 900), random.choice((15, 17, 40, 64, 70, 200, 257, 300))
        addresses = [f"198.19.{n // 250}.{n % 250}" for n in range(begin, begin + count)]
    known = tuple(map(ip_address, addresses))
    # The last name may be a service, whose addresses are hints: it points to any names.
    points_to = random.sample(NAMES, 2) if random.random() < 0.3 else []
    owners = tuple(
        on.RecordOwner(name, known, (*chain[at:], *points_to)) for at, name in enumerate(chain, 1)
    )
    return on.DnsReply(7, 0, False, chain[0], 1, known, owners[0].aliases, owners[1:])


def user(random):
    return random.choice((on.UNKNOWN_USER, 1000, 1001))


def often(random):
    return random.random() < 0.8


def some(*values):
    return lambda random: random.choice(values)


def refused(random):
    return random.sample(range(4), random.choice((0, 0, 0, 1, 2)))


# What happens, how often, and with which arguments.
KINDS = {
    "kernel_works": (6.0, {"refused": refused, "gone": some(True, False), "ends": often}),
    "all_is_done": (2.0, {}),
    "ruled": (2.0, {"host": some(*HOSTS), "port": some(None, None, 443)}),
    "many_rules": (0.2, {"count": some(3, 20, 55)}),
    "unruled": (1.0, {"which": some(*range(70))}),
    "resolver_answers": (4.0, {"reply": reply, "held": often, "user": user}),
    "stub_is_answered": (2.0, {"reply": reply, "held": often, "user": user}),
    "stranger_answers": (3.0, {"reply": reply, "user": user}),
    "connection_names": (1.0, {"name": some(*NAMES), "address": some(*FEW)}),
    "look_up_ends": (3.0, {"reply": reply, "succeeds": often}),
    "hosts_file_changes": (0.3, {"name": some(*NAMES), "addresses": few}),
    "networks_change": (0.5, {"which": some((0,), (1,), (0, 1))}),
    "pass_s": (1.0, {"seconds": some(0.5, 2.1, 11.0)}),
    "restarts": (0.2, {}),
}


def steps(seed):
    random = Random(seed)
    kinds = random.choices(list(KINDS), [often for often, _ in KINDS.values()], k=STEPS)
    return [(kind, {x: made(random) for x, made in KINDS[kind][1].items()}) for kind in kinds]


@pytest.mark.parametrize("seed", range(FIRST, END))
def test_what_programs_learn_of_ruled_names_is_under_the_rules(seed):
    walk = NamesUnderRules()
    for kind, arguments in steps(seed):
        print(kind, arguments)
        getattr(walk, kind)(**arguments)
        walk.none_is_ruled_that_was_not_told()
        walk.all_is_bounded()
        walk.none_waits_for_ever()
