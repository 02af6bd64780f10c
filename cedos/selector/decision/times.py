"""How long each strategy will take, by all that is known: predictors, who shares, queues, silences."""

from collections.abc import Mapping

from cedos.model import Context, Transfer
from cedos.selector.decision.own_queue import emptied, own_queues, queued
from cedos.selector.decision.roles import ROLES_OF, Roles
from cedos.selector.decision.sharing import competitors, shared
from cedos.selector.decision.silences import delayed, waits
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
    queues_s = own_queues(context, roles)
    predicted = model.predict(emptied(columns, queues_s))
    return lengthened(predicted, transfer, context, roles, queues_s, joined=joined)


def lengthened(
    predicted: Mapping[str, Distribution],
    transfer: Transfer,
    context: Context,
    roles: Roles,
    queues_s: Mapping[str, float],
    *,
    joined: bool,
) -> Mapping[str, Distribution]:
    """The predicted times with what sharing, `own_queues` and silences add to them."""
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
    if waits_s := waits(context, roles):
        predicted = {
            name: delayed(ROLES_OF[name], time, waits_s, joined=joined)
            for name, time in predicted.items()
        }
    return predicted
