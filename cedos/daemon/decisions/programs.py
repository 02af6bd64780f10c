"""Programs with hints about their transfers (`cedos exec`): their connections carry a mark."""

from dataclasses import dataclass

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.steer_interface import Steer, carried_out
from cedos.model import Context, Decision, Transfer


@dataclass(slots=True)
class _MarkedProgram:
    """A hinted program: its transfer, the decision, and where its mark's rule leads."""

    transfer: Transfer
    decision: Decision | None = None
    rule: str | None = None


class Programs:
    def __init__(self, steer: Steer, decider: Decider) -> None:
        self._steer = steer
        self._decider = decider
        self._known: dict[int, _MarkedProgram] = {}

    async def began(self, mark: int, transfer: Transfer, context: Context) -> str | None:
        """Return a program begins, whose connections carry `mark`.

        Returns:
            The network that its connections get; None where none is up.
        """
        known = self._known[mark] = _MarkedProgram(transfer)
        return await self._lead(mark, known, context)

    async def ended(self, mark: int) -> None:
        """Lead the connections of an ended program like all others."""
        known = self._known.pop(mark, None)
        if known is not None and known.rule is not None:
            await carried_out(self._steer.set_mark(mark, None))

    def decision(self, mark: int | None) -> Decision | None:
        """Return the decision that connections with this mark follow; None: they follow the default."""
        known = None if mark is None else self._known.get(mark)
        return None if known is None else known.decision

    async def reconsider(self, context: Context) -> None:
        for mark, known in list(self._known.items()):
            await self._lead(mark, known, context)

    async def _lead(self, mark: int, known: _MarkedProgram, context: Context) -> str | None:
        known.decision, _ = self._decider.renewed(known.transfer, context, known.decision)
        wanted = next(iter(known.decision.choice.networks), None)
        if wanted != known.rule and await carried_out(self._steer.set_mark(mark, wanted)):
            known.rule = wanted
        return wanted
