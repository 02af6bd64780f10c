"""The state of one network: unknown, alive, silent, dead or captive. Pure.

Many things can show that a network carries: its witnesses (`Witness`). Each one can be wrong alone.
Routers drop pings, resolvers filter names, a test page's server can be down. So a single kind of
witness never condemns a network, except its radio, and one success refutes what was missed before it.

The states, and what new connections do:

- unknown: nothing was heard yet, or one kind of witness has missed its answer. They try the network;
  the rescue of first packets protects them.
- alive: the last answer is younger than the last miss. They use it.
- silent: an answer is due for up to 3 s. They use it, with the expected rest of the silence.
- dead: two kinds of witnesses have missed their answers since the last success, or the radio says so.
  They avoid it.
- captive: a box in the way has answered, and a second kind of witness misses its answer, or has met
  the box as well. They avoid it.

The transitions:

    event                           from            what it changes
    heard pings, names, datagrams   silent, or      an outage is over: all misses go, but those of
                                    they had missed questions after which something was heard before it
                                    else            their own misses go: they were answered all along,
                                                    which says nothing of connections
    heard transfers                 no box known    all misses go
                                    a box known     those of connections stay: the box may have answered
    heard the page, a proven        any             all misses go, and the box is forgotten
      connection; carried much
    missed pings                    any             counts if nothing was heard since the question, and
                                                    never where others are answered and no ping ever was
    missed names, the page          any             counts if no connection was answered since, and
                                                    never where connections are and these never were
    missed connections              any             counts if none was answered since the question
    intercepted                     any             the box is known; that alone is a doubt
    silent for more than 3 s        silent          who waits has missed its answer
    time                            any             a miss is forgotten after 60 s; one of connections
                                                    after 5 s, then 10, 20 ... 60 s: the next one tries
    moved                           any             everything is forgotten: another place
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from cedos.controller.events import Witness
from cedos.model import Indicator, NetworkLife, NetworkVerdict
from cedos.selector.decision.liveness import GIVEN_UP_S

# The greatest age of evidence that makes a network dead. Otherwise an unused network stayed dead
# for ever.
BELIEVED_S = 60.0

# After a connection had no answer, no other is sent there for this time, and for twice as long
# each time.
_TRIED_AGAIN_S = 5.0

# This many lost pings in a row are no accident. Before anything was heard, one is enough.
_LOST_PINGS = 3

# A question that was asked this long before the last answer may have been lost to the outage after it.
_JUST_ASKED_S = 0.5

# If this many pings were lost while other packets were answered, pings tell nothing and stop.
_IN_VAIN = 5


_DATAGRAMS = frozenset({Witness.PING, Witness.NAME, Witness.DATAGRAM})
_STREAMS = frozenset({Witness.PAGE, Witness.CONNECTION, Witness.TRANSFER})
_TRIED_AGAIN = frozenset({Witness.CONNECTION, Witness.ELSEWHERE})


@dataclass(slots=True)
class _Missed:
    """Answers that did not come: since when they are due, the last one, how many."""

    asked_s: float
    at_s: float
    count: int = 1


@dataclass(slots=True)
class _Intercepted:
    """A box's answer in place of the one who was asked."""

    first_s: float
    at_s: float
    why: str
    page: str = ""


class Liveness:
    """The state of one network, by what its witnesses say. All times are monotonic, in s.

    Args:
        pings: how many of the last pings make `ping_loss`.
    """

    def __init__(self, pings: int = 5) -> None:
        self._pings: deque[tuple[float, bool]] = deque(maxlen=pings)
        self.forget()

    def forget(self) -> None:
        """Forget all: the network is attached at another place."""
        self._pings.clear()
        self._heard: dict[Witness, float] = {}
        self._missed: dict[Witness, _Missed] = {}
        self._intercepted: dict[Witness, _Intercepted] = {}
        self._silent_since_s: float | None = None
        self._silent_s = 0.0
        self._in_vain = 0
        self._tried_again_s = _TRIED_AGAIN_S

    def on_sleep(self, seconds: float) -> None:
        """Make all evidence older by a sleep; pings and silences of before say nothing."""
        self._pings.clear()
        self._silent_since_s, self._silent_s = None, 0.0
        self._heard = {each: at_s - seconds for each, at_s in self._heard.items()}
        for missed in self._missed.values():
            missed.asked_s, missed.at_s = missed.asked_s - seconds, missed.at_s - seconds
        for box in self._intercepted.values():
            box.first_s, box.at_s = box.first_s - seconds, box.at_s - seconds

    # -- events -------------------------------------------------------------------------------

    def on_heard(self, witness: Witness, at_s: float) -> None:
        """Take an answer from beyond the network's router."""
        over = self._silent_since_s is not None and at_s >= self._silent_since_s
        over = over or (witness in self._missed and at_s >= self._missed[witness].asked_s)
        carried_s = self._heard_of(set(Witness)) if witness in _DATAGRAMS else -inf
        self._heard[witness] = max(at_s, self._heard.get(witness, -inf))
        if witness is Witness.PING:
            self._pings.append((at_s, True))
            self._in_vain = 0
        if over:
            self._silent_since_s, self._silent_s = None, 0.0
        if witness in _DATAGRAMS and not over:
            self._refute(at_s, {witness, Witness.RADIO})
            return
        if witness in (Witness.PAGE, Witness.CONNECTION):
            self._intercepted.clear()
        kept = {Witness.CONNECTION} if self._intercepted else set()
        # The network carried after these questions: the outage does not explain why none was answered.
        kept |= {
            each
            for each, missed in self._missed.items()
            if missed.asked_s + _JUST_ASKED_S < carried_s
        }
        self._refute(at_s, set(Witness) - kept)
        if witness not in _DATAGRAMS:
            self._tried_again_s = _TRIED_AGAIN_S

    def on_bytes(self, at_s: float) -> None:
        """Take a transfer that no box in the way can have answered."""
        self.on_heard(Witness.TRANSFER, at_s)
        self.on_heard(Witness.CONNECTION, at_s)

    def on_missed(self, witness: Witness, at_s: float, asked_s: float | None = None) -> None:
        """Take that no answer has come by `at_s` to what was asked at `asked_s`."""
        asked_s = at_s if asked_s is None else asked_s
        refuted = self._heard_of(self._refuters(witness)) > asked_s
        if witness is Witness.PING:
            self._pings.append((at_s, False))
            self._in_vain += self._heard_of(set(Witness) - {witness}) >= asked_s
        if refuted:
            return
        known = self._missed.get(witness)
        if known is None:
            self._missed[witness] = _Missed(asked_s, at_s)
        elif at_s - known.at_s > self._believed_s(witness):
            # It was tried again, in vain.
            if witness in _TRIED_AGAIN:
                self._tried_again_s = min(2.0 * self._tried_again_s, BELIEVED_S)
            self._missed[witness] = _Missed(asked_s, at_s)
        else:
            known.at_s, known.count = max(at_s, known.at_s), known.count + 1

    def on_intercepted(self, witness: Witness, at_s: float, why: str, page: str = "") -> None:
        """Take an answer of a box in the way; `page`: where a person can log in."""
        known = self._intercepted.get(witness)
        first_s = known.first_s if known is not None else at_s
        self._intercepted[witness] = _Intercepted(first_s, at_s, why, page)
        self._missed.pop(witness, None)

    def useless(self, witness: Witness) -> None:
        """Forget what a witness said: it is filtered here, or broken itself."""
        self._missed.pop(witness, None)
        self._intercepted.pop(witness, None)

    def silent(self, silent_s: float, now_s: float, *waiting: Witness) -> None:
        """Take for how long an answer has been due; 0: none is. `waiting`: whose."""
        self._silent_s = silent_s
        if silent_s <= 0.0:
            self._silent_since_s = None
            return
        self._silent_since_s = now_s - silent_s
        for witness in waiting if silent_s > GIVEN_UP_S else ():
            self.on_missed(witness, now_s, self._silent_since_s)
            if (
                witness is Witness.PING and witness in self._missed
            ):  # for so long no ping is lost by chance
                self._missed[witness].count += _LOST_PINGS

    # -- verdicts -----------------------------------------------------------------------------

    def verdict(self, now_s: float) -> NetworkVerdict:
        """Return the state, with the reason and since when."""
        missed = self._believed_witnesses(now_s)
        since_s = min((self._missed[each].asked_s for each in missed), default=now_s)
        if Witness.RADIO in missed:
            return NetworkVerdict(NetworkLife.DEAD, "its radio has no connection", since_s)
        boxes = {
            each: box for each, box in self._intercepted.items() if now_s - box.at_s <= BELIEVED_S
        }
        if boxes:
            box = next(iter(boxes.values()))
            page = next((each.page for each in boxes.values() if each.page), "")
            if len(boxes.keys() | missed) > 1:
                return NetworkVerdict(NetworkLife.CAPTIVE, box.why, box.first_s, page)
        if len(missed) > 1:
            return NetworkVerdict(NetworkLife.DEAD, _describe_unanswered(missed), since_s)
        if 0.0 < self._silent_s <= GIVEN_UP_S:
            return NetworkVerdict(NetworkLife.SILENT, "a reply is due", now_s - self._silent_s)
        if boxes:
            why = f"{box.why}, and nothing else tells of a log-in"
            return NetworkVerdict(NetworkLife.UNKNOWN, why, box.first_s, page)
        if self._silent_s > GIVEN_UP_S and not missed:
            why = "an answer was due for long; nothing else tells"
            return NetworkVerdict(NetworkLife.UNKNOWN, why, now_s - self._silent_s)
        if doubts := self._counting():  # of long ago, too
            since_s = min(self._missed[each].asked_s for each in doubts)
            return NetworkVerdict(
                NetworkLife.UNKNOWN, f"{_describe_unanswered(doubts)}; nothing else tells", since_s
            )
        if not self._heard:
            return NetworkVerdict(NetworkLife.UNKNOWN, "nothing was heard from it yet", now_s)
        return NetworkVerdict(NetworkLife.ALIVE, "it answers", max(self._heard.values()))

    def indicators(self, verdict: NetworkVerdict, now_s: float) -> dict[str, Indicator]:
        """Return `ping_loss`, `silence_s` and `captive`, as far as they tell something.

        `verdict`: the one of now.
        """
        found = {}
        if (loss := self.ping_loss) is not None:
            found["ping_loss"] = loss
        if self._silent_s > 0.0 and verdict.life in (NetworkLife.SILENT, NetworkLife.DEAD):
            found["silence_s"] = Indicator(self._silent_s, now_s)
        if verdict.life is NetworkLife.CAPTIVE:
            at_s = max(each.at_s for each in self._intercepted.values())
            found["captive"] = Indicator(1.0, at_s, active=True)
        elif Witness.PAGE in self._heard:
            found["captive"] = Indicator(0.0, self._heard[Witness.PAGE], active=True)
        return found

    @property
    def ping_loss(self) -> Indicator | None:
        """Return the share of the last pings that were lost; None where no ping was ever answered."""
        if not self._pings or Witness.PING not in self._heard:
            return None
        lost = sum(not answered for _, answered in self._pings)
        if lost == len(self._pings):
            others_s = self._heard_of(set(Witness) - {Witness.PING})
            if others_s >= self._pings[0][0]:
                return None
        return Indicator(lost / len(self._pings), self._pings[-1][0], active=True)

    @property
    def drops_pings(self) -> bool:
        """Return whether this network never lets a ping through: it need not be asked."""
        return Witness.PING not in self._heard and self._in_vain >= _IN_VAIN

    def has_answered(self, witness: Witness) -> bool:
        """Return whether this witness ever answered here, so that its next answer can be waited for."""
        return witness in self._heard

    def misses(self, witness: Witness) -> bool:
        """Return whether an answer to this witness is missed: its next one refutes the others' misses."""
        return witness in self._missed

    def _refute(self, at_s: float, witnesses: set[Witness]) -> None:
        for each in witnesses & self._missed.keys():
            if self._missed[each].asked_s <= at_s:
                del self._missed[each]

    def _heard_of(self, witnesses: Collection[Witness]) -> float:
        return max((self._heard.get(each, -inf) for each in witnesses), default=-inf)

    def _refuters(self, witness: Witness) -> Collection[Witness]:
        """Return whose answer since the question shows that a miss means nothing."""
        if witness not in (Witness.NAME, *_STREAMS, Witness.ELSEWHERE):
            return set(Witness)
        # (A box in the way answers transfers, too.)
        by = _STREAMS - {Witness.TRANSFER} if self._intercepted else _STREAMS
        return {*by, witness}

    def _is_in_vain(self, witness: Witness) -> bool:
        """Return whether a probe was never answered here, though better witnesses were."""
        if witness in self._heard:
            return False
        if witness is Witness.PING:
            return bool(self._heard)
        return witness in (Witness.NAME, Witness.PAGE) and self._heard_of(_STREAMS) > -inf

    def _believed_s(self, witness: Witness) -> float:
        again = witness in _TRIED_AGAIN and not self._intercepted
        return self._tried_again_s if again else BELIEVED_S

    def _counting(self) -> set[Witness]:
        """Return the witnesses whose misses mean something and are no chance."""
        return {
            each
            for each, missed in self._missed.items()
            if not self._is_in_vain(each)
            and (each is not Witness.PING or not self._heard or missed.count >= _LOST_PINGS)
        }

    def _believed_witnesses(self, now_s: float) -> set[Witness]:
        """Return those among them that are not of long ago."""
        return {
            each
            for each in self._counting()
            if now_s - self._missed[each].at_s <= self._believed_s(each)
        }


def _describe_unanswered(missed: set[Witness]) -> str:
    named = [each.value for each in Witness if each in missed]
    *first, last = named
    return f"no answer to {', '.join(first)} and {last}" if first else f"no answer to {last}"
