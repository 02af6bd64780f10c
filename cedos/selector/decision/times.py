"""How long each strategy will take, by all that is known: predictors, who shares, queues, silences."""

from collections.abc import Mapping

from cedos.model import Context, Transfer
from cedos.selector.decision.own_queue import emptied, own_queues, queued
from cedos.selector.decision.roles import ROLES_OF, Roles
from cedos.selector.decision.sharing import competitors, shared
from cedos.selector.decision.silent import delayed, silences
from cedos.selector.uncertainty.completion import CompletionModel
from predictors.base import Distribution


def completion_times(
    columns: Mapping[str, float],
    transfer: Transfer,
    context: Context,
    roles: Roles,
    model: CompletionModel,
    *,
    joined: bool,
) -> Mapping[str, Distribution]:
    """The completion time of each strategy that the model knows, in seconds.

    `columns`: `features` of the same transfer and context. `joined`: whether second subflows are there
    already.
    """
    predicted = model.predict(shown(columns, context, roles))
    return lengthened(predicted, transfer, context, roles, joined=joined)


def shown(columns: Mapping[str, float], context: Context, roles: Roles) -> Mapping[str, float]:
    """The columns as predictors are shown them: round trips without this host's own queues."""
    queues_s = own_queues(context, roles)
    return emptied(columns, queues_s) if queues_s else columns


def lengthened(
    predicted: Mapping[str, Distribution],
    transfer: Transfer,
    context: Context,
    roles: Roles,
    *,
    joined: bool,
) -> Mapping[str, Distribution]:
    """The predicted times with what sharing, queues and silences add to them."""
    queues_s = own_queues(context, roles)
    if competing := competitors(context, roles, transfer):
        size_bytes = transfer.size.median_bytes
        predicted = {
            name: shared(ROLES_OF[name], time, size_bytes, competing)
            for name, time in predicted.items()
        }
    if queues_s:
        predicted = {
            name: queued(ROLES_OF[name], time, queues_s) for name, time in predicted.items()
        }
    if silent := silences(context, roles):
        predicted = {
            name: delayed(ROLES_OF[name], time, silent, joined=joined)
            for name, time in predicted.items()
        }
    return predicted
