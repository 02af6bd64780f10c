"""What the daemon must be able to answer for the control socket."""

from collections.abc import AsyncGenerator
from typing import Protocol

from cedos.api.budgets import BudgetMessage, UsageMessage
from cedos.api.choosing import ChoiceRequest
from cedos.api.hints import HintAccepted, HintRequest
from cedos.api.messages import (
    CarriedReport,
    DecisionMessage,
    FlowMessage,
    NetworkMessage,
    StatusMessage,
)
from cedos.api.prefetching import PrefetchingAnswer, PrefetchingRequest, ProgramMessage
from cedos.api.probing import ProbingMessage
from cedos.api.rules import RuleMessage, RuleRequest
from cedos.api.transfers import TransferInTable, TransferReport, TurnMessage
from cedos.model import Budget


class Backend(Protocol):
    """The daemon, as the control socket sees it. A CedosError is passed on to the asker."""

    async def status(self) -> StatusMessage:
        """Everything at a glance."""

    async def networks(self) -> list[NetworkMessage]:
        """All networks with their indicators."""

    async def flows(self) -> list[FlowMessage]:
        """All living flows."""

    async def explain(self, flow: str | None) -> DecisionMessage:
        """The latest decision about a flow.

        Errors: NotFoundError, no decision about such a flow is known.

        Args:
            flow: a decision's number, or what `messages.flow_matches` understands, or of a connection
                through a gateway `messages.server_matches`; None: the latest decision of all.
        """

    async def choose(self, request: ChoiceRequest) -> DecisionMessage:
        """Decides on one transfer of a program that chooses its networks itself."""

    async def prefetching(self, request: PrefetchingRequest) -> PrefetchingAnswer:
        """Takes what a program prefetches; says what that depends on."""

    async def prefetched(self) -> list[ProgramMessage]:
        """The programs that prefetch now."""

    async def probing(self) -> list[ProbingMessage]:
        """Which networks are probed, which are not, and why."""

    async def transfer(self, report: TransferReport, uid: int) -> TurnMessage:
        """Takes a user's word about a transfer with a deadline; ConfigError where it cannot be taken.

        Answers at once where its turn is another one than it has seen, else when it becomes one, after
        its `wait_s` at the latest.
        """

    async def transfers(self) -> list[TransferInTable]:
        """All transfers with deadlines, the earliest first."""

    async def told_carried(self, report: CarriedReport, uid: int) -> None:
        """Takes a proxy's word about what it carries; ConfigError where it cannot be taken."""

    async def hint(self, hint: HintRequest, uid: int) -> HintAccepted:
        """Takes a user's hint into account for coming transfers."""

    async def unhint(self, number: int, uid: int) -> None:
        """Forgets a hint of this user (of anybody for root). Errors: NotFoundError, PrivilegeError."""

    async def standing_budgets(self) -> list[BudgetMessage]:
        """All budgets, and how they stand."""

    async def usage(self, since_unix_s: float) -> UsageMessage:
        """What was used since then, by network and by server."""

    async def set_budget(self, budget: Budget) -> BudgetMessage:
        """Sets a budget, or changes the one of this name; ConfigError where it cannot be one."""

    async def remove_budget(self, name: str) -> None:
        """Takes a budget back; NotFoundError where there is none, ConfigError where a file has it."""

    async def rules(self) -> list[RuleMessage]:
        """The user's rules, and where they lead now."""

    async def add_rule(self, rule: RuleRequest) -> RuleMessage:
        """Adds a rule, or changes that of the same host and port; ConfigError: there are too many."""

    async def remove_rule(self, number: int) -> None:
        """Takes a rule back; NotFoundError where there is none."""

    def decisions(self) -> AsyncGenerator[DecisionMessage, None]:
        """All decisions from now on (`api.broadcast.Broadcast.subscribe`)."""
