"""Answers to look-ups wait before programs have them, while a user's rule is for a name.

A rule for a name is kept by routes to the addresses of the name. So an answer waits in a queue of the
kernel until the routes of its addresses stand:

    answer of a resolver of this host      to a question that a program has asked: the rule covers its
                                           addresses, then it passes
    any other answer                       our own look-up of that name first; it passes if that
                                           confirms all of its addresses
    one to a resolver on loopback          as the first, where the rule is for what it asked: programs
                                           may ask it by other means than packets
    what is no answer to its question      is dropped if either is about a ruled name, else passes
    records of other names in an answer    likewise; behind it, they count as an answer about these
    a name in a TLS hello or a request     counts for its connection alone, and is looked up likewise

An answer about a ruled name whose routes do not stand after 2 s, or that no look-up of ours confirms, is
dropped: its program asks again. So is one by which a user's look-ups would change more than their share:
each change of the kernel's rules keeps the daemon from other work.
Names that are asked for in TLS (DoT, DoH) cannot be seen: there the first connection to a new address is
not covered.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from cedos.controller.commands import HoldAnswers, LookUpName, ReleaseAnswer, Tell
from cedos.controller.config import ControllerConfig
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.user_rules import RuledDestinations
from cedos.controller.events import UNKNOWN_USER, AnswersRead, DnsReply, NameLookedUp
from cedos.controller.lookups import own_resolver
from cedos.controller.outbox import Outbox
from cedos.limits import SUBORDINATE, TokenBucket
from cedos.model import Address

_MOST_HELD, _MOST_ASKED = 128, 256
# The most answers that wait for a look-up of ours, of all users and of each: they leave room for those
# that are believed.
_MOST_CLAIMS, _MOST_CLAIMS_OF_ONE = 64, 16
# The longest time for which an answer is held. Then it is dropped, and programs ask again.
LONGEST_S: Final = 2.0
# A look-up of ours that began in this time counts for further claims of its name.
_ASKED_S: Final = 10.0
# The rate at which names that are claimed are looked up: of each user's claims, and of all. Those in TLS
# hellos and requests together are one more user's.
_PER_S, _BURST = 5.0, 32
_PER_S_OF_ALL, _BURST_OF_ALL = 20.0, 128
_MOST_USERS: Final = 256
# The changes of addresses under rules that each user's look-ups may make: a second, and at once.
CHANGES_PER_S, CHANGES_AT_ONCE = 64.0, 512
# An answer that changes anything, be it an alias, counts as so many: all rules are looked through for it.
_LEAST_CHANGES: Final = 4
# The addresses of an answer that is dropped that a line of the log tells.
_MOST_TOLD: Final = 4
_NAMED: Final = -2


@dataclass(slots=True)
class _Confirmation:
    """A look-up of ours."""

    begun_at_s: float
    user: int
    over: bool = False


@dataclass(slots=True)
class _HeldAnswer:
    """An answer that waits for the routes of its addresses; `claims`: with look-ups of ours."""

    until_s: float
    replies: tuple[DnsReply, ...]
    user: int
    claims: list[_Confirmation] = field(default_factory=list)

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(each for reply in self.replies for each in reply.addresses)


class HeldAnswers:
    """The answers that wait, and the look-ups of ours that judge them."""

    def __init__(
        self,
        config: ControllerConfig,
        outbox: Outbox,
        decider: Decider,
        ruled: RuledDestinations,
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._decider = decider
        self._ruled = ruled
        self._holding = False
        self._why = ""
        self._held: OrderedDict[int, _HeldAnswer] = OrderedDict()
        self._confirmations: OrderedDict[str, _Confirmation] = OrderedDict()
        self._bucket: TokenBucket | None = None
        self._buckets: OrderedDict[int, TokenBucket] = OrderedDict()
        self._shares: OrderedDict[int, TokenBucket] = OrderedDict()

    @property
    def problems(self) -> list[str]:
        """Return why answers are not held, where they should be."""
        if not self._why or not self._ruled.rules.have_names:
            return []
        return [
            "rules for names may miss the first connection to a new address: answers to"
            f" look-ups cannot be held ({self._why})"
        ]

    def next_timer_s(self) -> float | None:
        """Return when the oldest answer has waited too long."""
        return next((each.until_s for each in self._held.values()), None)

    def follow(self) -> None:
        """Hold answers while a rule is for a name, and only then."""
        wanted = self._ruled.rules.have_names and not self._config.dry_run
        if wanted == self._holding:
            return
        self._holding = wanted
        self._outbox.give(HoldAnswers(wanted))

    def on_hold(self, on: bool, why: str = "") -> None:
        """Take the end of `HoldAnswers(on)`; `why`: it failed, and `follow` orders it again."""
        self._why = why if on else ""
        if why:
            self._holding = not on
            still = "not" if on else "still"
            self._outbox.give(Tell(f"answers to look-ups are {still} held", {"why": why}))

    def learn(self, event: AnswersRead | NameLookedUp, now_s: float) -> bool:
        """Take what resolvers of this host have told; return whether it is about a rule's name."""
        if isinstance(event, AnswersRead):
            replies, user = (*event.believed, *self._select_trusted(event.relayed)), event.user
        else:
            known = self._confirmations.get(event.name)
            replies, user = tuple(event.told.values()), _NAMED if known is None else known.user
        learnt = False
        for reply in replies:
            learnt = self._learn(reply, user, now_s) or learnt
        return learnt

    def _learn(self, reply: DnsReply, user: int, now_s: float) -> bool:
        """Take an answer unless it changes rules beyond its user's share; what it does is charged."""
        rules = self._ruled.rules
        share = self._share(user, now_s)
        if share.available(now_s) < 1 and not rules.covers(reply):
            return False
        before = rules.by_address
        learnt = rules.on_answer(reply)
        if (after := rules.by_address) is not before:
            changed = sum(before.get(each) != after.get(each) for each in {**before, **after})
            share.charge(now_s, max(changed, _LEAST_CHANGES))
        return learnt

    def _share(self, user: int, now_s: float) -> TokenBucket:
        user = min(user, SUBORDINATE)
        return _of_user(self._shares, user, CHANGES_PER_S, CHANGES_AT_ONCE, now_s)

    def _select_trusted(self, relayed: Iterable[DnsReply]) -> list[DnsReply]:
        """Return what counts of these: any server may call a ruled name an alias of its own one."""
        bare = [(reply, replace(reply, aliases=(), owners=())) for reply in relayed]
        return [whole if self._ruled.rules.rules_about(each) else each for whole, each in bare]

    def on_read(self, event: AnswersRead, now_s: float) -> None:
        """Decide on an answer that waits: the rules know what is believed of it."""
        if event.number is None:
            return
        if any(map(self._ruled.rules.concerned_by, event.mistaken)):
            self._outbox.give(ReleaseAnswer(event.number, passes=False))
            return
        replies = (*event.believed, *event.claimed, *self._select_trusted(event.relayed))
        claims = [reply for reply in event.claimed if not self._ruled.rules.covers(reply)]
        answer = _HeldAnswer(now_s + LONGEST_S, replies, event.user)
        if not claims and (passes := self._passes(answer, now_s)) is not None:
            self._release(event.number, answer, passes, now_s)
            return
        claiming = [each.user for each in self._held.values() if each.claims]
        full = len(claiming) >= _MOST_CLAIMS
        if event.user != UNKNOWN_USER:
            full = full or claiming.count(event.user) >= _MOST_CLAIMS_OF_ONE
        if len(self._held) >= _MOST_HELD or (claims and full):
            self._outbox.give(ReleaseAnswer(event.number, passes=False))
            return
        for reply in claims:
            if (confirmation := self._confirmation(reply.name, event.user, now_s)) is None:
                self._outbox.give(ReleaseAnswer(event.number, passes=False))
                return
            answer.claims.append(confirmation)
        self._held[event.number] = answer

    def on_named(self, name: str, address: Address, now_s: float) -> None:
        """Take the server that a connection names: a look-up of ours shows whether it is true."""
        number = self._ruled.rules.find_by_name(name)
        if number is None or number in self._ruled.rules.at(address) or self._config.dry_run:
            return
        self._confirmation(name, _NAMED, now_s)

    def on_looked_up(self, event: NameLookedUp) -> None:
        """Take the end of a look-up of ours."""
        if (known := self._confirmations.get(event.name)) is not None:
            known.over = True

    def review(self, now_s: float) -> None:
        """Let the answers pass whose routes stand, and drop those that were not confirmed, or late."""
        for number, each in list(self._held.items()):
            if (passes := self._passes(each, now_s)) is not None:
                del self._held[number]
                self._release(number, each, passes, now_s)

    def _passes(self, answer: _HeldAnswer, now_s: float) -> bool | None:
        """Return whether an answer passes; None: that is still to be seen."""
        # (To compare it with the rules takes much longer. An address of no rule stands.)
        if all(claim.over for claim in answer.claims) and self._ruled.stand(answer.addresses):
            return all(map(self._ruled.rules.covers, answer.replies))
        return False if now_s >= answer.until_s else None

    def _release(self, number: int, answer: _HeldAnswer, passes: bool, now_s: float) -> None:
        if not passes:
            why = "its rule does not stand"
            if self._share(answer.user, now_s).available(now_s) < 1:
                why = "its user's look-ups change too much"
            about = {"addresses": ", ".join(map(str, answer.addresses[:_MOST_TOLD]))}
            self._outbox.give(Tell(f"an answer is dropped: {why}", about))
        self._outbox.give(ReleaseAnswer(number, passes))

    def _confirmation(self, name: str, user: int, now_s: float) -> _Confirmation | None:
        """Return the look-up of a claimed name that began in the last 10 s, else begin one.

        None: too many were begun of late. A sender of answers that were not asked for can claim new names
        without end, and each look-up goes over all networks.
        """
        known = self._confirmations.get(name)
        if known is not None and now_s - known.begun_at_s < _ASKED_S:
            return known
        if self._bucket is None:
            self._bucket = TokenBucket(_PER_S_OF_ALL, _BURST_OF_ALL, now_s)
        own = self._bucket_of(user, now_s)
        if (own is not None and not own.take(now_s)) or not self._bucket.take(now_s):
            return None
        begun = self._confirmations[name] = _Confirmation(now_s, user)
        self._confirmations.move_to_end(name)
        while len(self._confirmations) > _MOST_ASKED:
            self._confirmations.popitem(last=False)
        asked = tuple(
            (network.name, resolver)
            for network in sorted(self._decider.usable, key=lambda each: each.metered)
            if (resolver := own_resolver(network, self._ruled.may_ask)) is not None
        )
        self._outbox.give(LookUpName(name, asked))
        return begun

    def _bucket_of(self, user: int, now_s: float) -> TokenBucket | None:
        """Return the bucket of a user's claims; None: it may be any user, and no one has a share."""
        if user == UNKNOWN_USER:
            return None
        return _of_user(self._buckets, user, _PER_S, _BURST, now_s)


def _of_user(
    buckets: OrderedDict[int, TokenBucket], user: int, per_s: float, burst: float, now_s: float
) -> TokenBucket:
    """Return a user's bucket. Of many users those who were last here have one."""
    own = buckets.setdefault(user, TokenBucket(per_s, burst, now_s))
    buckets.move_to_end(user)
    while len(buckets) > _MOST_USERS:
        buckets.popitem(last=False)
    return own
