"""One case to decide: what is known of it, what its strategies would cost, and why one is chosen."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cedos.model import Context, Evaluation, Network, StrategyKind, Transfer
from cedos.selector.decision import reason as words
from cedos.selector.decision.evaluate import Retime, evaluate
from cedos.selector.decision.fallback import RuleOfThumb
from cedos.selector.decision.liveness import GIVEN_UP_S
from cedos.selector.decision.roles import Roles, assign, pairs
from cedos.selector.decision.silent import longer_s, silences
from cedos.selector.energy.power_model import PowerModel
from cedos.selector.objective import MaxS, Objective
from cedos.selector.uncertainty.completion import CompletionModel
from cedos.selector.uncertainty.method import BRUTE_FORCE, WORDS, Method

_RULE = RuleOfThumb()


@dataclass(slots=True)
class Case:
    """What `decide` and `decide_again` are asked, in their words; `dead`: networks, and why they are."""

    transfer: Transfer
    context: Context
    networks: Sequence[Network]
    dead: Mapping[str, str]
    model: CompletionModel | None
    objective: Objective
    power: PowerModel
    kinds: Collection[StrategyKind]
    idle_s: Mapping[str, float]
    price_per_mb: Mapping[str, float]
    method: Method

    def evaluations(self, retime: Retime | None = None) -> tuple[tuple[Evaluation, ...], bool]:
        """The evaluations, and whether they come from the rule of thumb.

        Args:
            retime: of a living flow: what becomes of the times that are predicted for a new one.
        """
        first, *others = pairs(self.networks, self.dead)
        # A model that knows none of the strategies at hand is as good as none.
        for known in (self.model, _RULE):
            if known is None:
                continue
            found = self._of(first, known, retime)
            for roles in others:
                seen = {each.strategy for each in found}
                more = self._of(roles, known, retime)
                found += tuple(each for each in more if each.strategy not in seen)
            if found:
                # Of equal costs the first one wins: the simplest.
                if others:
                    found = tuple(sorted(found, key=lambda each: len(each.strategy.networks)))
                return found, known is _RULE
        return (), False

    def _of(
        self, roles: Roles, model: CompletionModel, retime: Retime | None
    ) -> tuple[Evaluation, ...]:
        return evaluate(
            self.transfer,
            self.context,
            roles,
            model,
            self.objective,
            self.power,
            kinds=self.kinds,
            idle_s=self.idle_s,
            dead=self.dead,
            joined=retime is not None,
            retime=retime,
            price_per_mb=self.price_per_mb,
            method=self.method,
        )

    def reason(self, best: Evaluation, evaluations: Sequence[Evaluation], by_rule: bool) -> str:
        """Why the best one is the best, with what people should know beside the figures."""
        return words.reason(
            best,
            evaluations,
            self.context,
            self.transfer,
            self.dead,
            by_rule=by_rule,
            only_time=isinstance(self.objective, MaxS),
            notes=self._notes(evaluations),
        )

    def _notes(self, evaluations: Sequence[Evaluation]) -> list[str]:
        said = []
        if any("silence_s" in known for known in self.context.networks.values()):
            roles = assign(self.networks)
            names = {role: network.name for role, network in roles.players()}
            said = [
                f"{names[role]} has been silent for {silent_s:.1f} s while something was expected of it,"
                f" and may be for {longer_s(role, silent_s):.0f} s more"
                for role, silent_s in silences(self.context, roles).items()
                if silent_s <= GIVEN_UP_S
            ]
        twice = any(each.strategy.kind == StrategyKind.REDUNDANT for each in evaluations)
        if twice or self.method != BRUTE_FORCE:
            said.append(WORDS[self.method])
        learned = getattr(self.model, "note", "")
        return said + [note for note in (self.objective.note, learned) if note]
