"""The daemon's choice for sessions: what its control socket says to `choose`, asked beside the data.

Without a daemon there is no choice, and nothing is said about it: it is asked again only now and then.
"""

import asyncio
import threading
from pathlib import Path
from typing import Final

from cedos.api.choosing import ChoiceRequest
from cedos.api.client import ControlClient
from cedos.errors import CedosError
from cedos.model import Bulk, Label, Strategy, Urgency
from cedos.session.io.advice import ASK_S, VALID_S, KnownNetwork, Question

_TIMEOUT_S: Final = 1.0
_ABSENT_S: Final = 10.0
_NAMES_S: Final = 10.0
_MOST_ANSWERS: Final = 256


class DaemonChooser:
    """Asks the daemon behind a control socket, for all sessions of this process (`advice.Chooser`).

    Questions of several sessions that are alike are one question. A decision without a single evaluation
    knows no network that is up: no choice.
    """

    def __init__(self, socket: Path) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._interfaces: dict[str, str] = {}
        self._networks: dict[str, KnownNetwork] = {}
        self._named_s = self._absent_s = float("-inf")
        self._asking = threading.Lock()
        self._answers: dict[Question, tuple[float, Strategy | None]] = {}
        self._decided: dict[Label, tuple[float, int]] = {}

    async def learn(self) -> None:
        """Asks which networks there are, of which kind, and whether metered, unless it just has."""
        now = asyncio.get_running_loop().time()
        if now - self._named_s > ASK_S and now - self._absent_s > _ABSENT_S:
            await asyncio.to_thread(self._learn, now)

    def network(self, interface: str) -> KnownNetwork | None:
        """As the daemon said last; a network keeps its kind when the daemon ends."""
        return self._networks.get(interface)

    async def choose(self, question: Question) -> Strategy | None:
        """The strategy, its networks named by their interfaces; None: there is no daemon or no choice."""
        now = asyncio.get_running_loop().time()
        known, strategy = self._known(question, now)
        return strategy if known else await asyncio.to_thread(self._ask, question, now)

    def decided(self, label: Label) -> int | None:
        """Of the last one that counts still, of whichever session of this process."""
        decided_s, number = self._decided.get(label, (float("-inf"), None))
        return number if asyncio.get_running_loop().time() - decided_s < VALID_S else None

    def _known(self, question: Question, now: float) -> tuple[bool, Strategy | None]:
        """Whether it need not be asked now, and the answer then."""
        asked_s, strategy = self._answers.get(question, (float("-inf"), None))
        if now - self._absent_s < _ABSENT_S:
            return True, None
        return now - asked_s < ASK_S / 2, strategy

    def _ask(self, question: Question, now: float) -> Strategy | None:
        with self._asking:
            known, strategy = self._known(question, now)  # by now: many may ask at once
            if known:
                return strategy
            try:
                strategy = self._chosen(question, now)
            except CedosError:  # none there, another version, not ours to ask: it goes without
                self._absent_s = now
                return None
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[question] = (now, strategy)
            return strategy

    def _learn(self, now: float) -> None:
        with self._asking:
            try:
                self._name(now)
            except CedosError:  # as below
                self._absent_s = now

    def _name(self, now: float) -> None:
        networks = self._client.networks()
        self._interfaces = {each.name: each.interface for each in networks}
        self._networks = {
            each.interface: KnownNetwork(each.kind, each.metered) for each in networks
        }
        self._named_s = now

    def _chosen(self, question: Question, now: float) -> Strategy | None:
        urgency, bulk = question.label.urgency, question.label.bulk
        decision = self._client.choose(
            ChoiceRequest(
                size_bytes=question.size_bytes,
                direction=question.direction,
                urgency=urgency,
                deadline_s=question.deadline_s,
                multipath=True,
                redundant=urgency is Urgency.FOREGROUND and bulk is Bulk.SMALL,
                sent_over=question.sent_over,
                waited_s=question.waited_s,
            )
        )
        self._decided[question.label] = now, decision.number
        if not decision.evaluations:
            return None
        choice = decision.choice
        if now - self._named_s > _NAMES_S or not self._interfaces.keys() >= set(choice.networks):
            self._name(now)
        return Strategy(
            choice.kind, tuple(self._interfaces.get(name, name) for name in choice.networks)
        )
