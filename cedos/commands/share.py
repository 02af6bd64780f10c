"""`cedos share`: what is shared now, who owes what to whom, and whom neighbours trust."""

import importlib
from collections.abc import Iterator
from typing import Any, Final

import click

from cedos.apps.sharing import own_identity
from cedos.apps.sharing.own_identity import SharingClock
from cedos.apps.sharing.store import SharingStore
from cedos.commands.console import render
from cedos.commands.console.manual import STATE, Manual, json_option
from cedos.commands.console.render import echo
from cedos.config.directories import directories, user_folder
from cedos.errors import SharingError
from cedos.storage.sharing_status import STATUS_FILES, read_status

_MILLIONTHS: Final = 1_000_000
_SIDES: Final = ("register", "request", "help")


class _Group(Manual, click.Group):
    """A group that imports the commands of a host that shares when one of them is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*_SIDES, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _SIDES and cmd_name not in self.commands:
            for each in importlib.import_module("cedos.commands.sharing.sides").COMMANDS:
                self.add_command(each)
        return super().get_command(ctx, cmd_name)


@click.group(
    "share",
    cls=_Group,
    invoke_without_command=True,
    examples=[
        ("cedos share", "Helpers or requestors of now, and what they carried."),
        ("sudo cedos share register", "Once a month: the gateway certifies this host."),
        ("sudo cedos share help --price 0.50EUR/GB --limit 500MB", "Sell, until Ctrl-C."),
        ("sudo cedos share request --rate 8Mbit --budget 2EUR", "Buy, until Ctrl-C."),
        ("sudo cedos share receipts", "Who owes what to whom."),
        ("cedos share revoke bob", "At the gateway: neighbours trust bob no more."),
    ],
    files=[STATE],
)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Buy bandwidth from neighbours, or sell it to them (CBSP).

    `cedos share request` uses the networks of neighbours who run `cedos share help`, all at once,
    for the programs that reach the gateway through `cedos forward`. All of them have joined the same
    gateway (`cedos join`) and are registered there (`sudo cedos share register`). Without a command:
    what is shared now.
    """
    if ctx.invoked_subcommand is not None:
        return
    runtime = directories().runtime
    found = [read_status(runtime / name) for name in STATUS_FILES.values()]
    living = [each for each in found if each is not None]
    if as_json:
        render.print_json(living)
        return
    if not living:
        echo("Nothing is shared now.")
    for each in living:
        render.show(_lines(each))


def _lines(status: dict[str, Any]) -> Iterator[str]:
    currency = status["currency"]
    if status["role"] == "help":
        price, left = _amount(status["price"], currency), render.size(status["left_bytes"])
        yield f"This host helps for {price}/GB; {left} of {render.size(status['limit_bytes'])} are left."
        rows = [
            (each["name"], each["state"], render.size(each["carried_bytes"]),
             _amount(each["earned"], currency))
            for each in status["requestors"]
        ]  # fmt: skip
        if not rows:
            yield "No neighbour uses it now."
            return
        yield from render.table(("REQUESTOR", "STATE", "CARRIED", "EARNED"), rows)
        return
    budget = "" if status["budget"] is None else f" of {_amount(status['budget'], currency)}"
    spent = _amount(status["spent"], currency)
    yield f"This host wants {render.rate(status['wanted_bps'])}; it has spent {spent}{budget}."
    helpers = [
        (each["name"], each["state"], render.rate(each["rate_bps"]),
         f"{_amount(each['price'], currency)}/GB", render.size(each["carried_bytes"]),
         _amount(each["amount"], currency), render.size(each["left_bytes"]))
        for each in status["helpers"]
    ]  # fmt: skip
    if status["barred_by"]:
        yield f"The hard budget {status['barred_by']} is used up, so no helper is used."
        return
    if not helpers:
        spent_up = status["budget"] is not None and status["spent"] >= status["budget"]
        yield (
            "The budget is spent." if spent_up else "No neighbour helps now; they are asked again."
        )
        return
    header = ("HELPER", "STATE", "RATE", "PRICE", "CARRIED", "OWED", "LEFT")
    yield from render.table(header, helpers)


def _amount(millionths: int, currency: str) -> str:
    return f"{millionths / _MILLIONTHS:.4f} {currency}"


@command.command(
    "receipts", cls=Manual,
    examples=[
        ("sudo cedos share receipts", "Who owes what to whom."),
        ("sudo cedos share receipts --json | jq .receipts", "Every receipt."),
    ],
    exits=(0, 1, 2, 3), files=[STATE],
)  # fmt: skip
@json_option
def receipts(as_json: bool) -> None:
    """List who owes what to whom, by the gateway's signed receipts.

    `cedos share request` and `help` fetch them every five seconds while they run. The last ones come
    after the next start.
    """
    path = directories().state / "sharing.sqlite"
    if not path.exists():
        echo("[]" if as_json else "No receipts yet.")
        return
    store = SharingStore(path)
    own = own_identity.own_signing_key().public

    def name(host: bytes) -> str:
        return "this host" if host == own else store.name_of(host) or host.hex()[:12]

    try:
        owed, all_ = store.list_debts(), store.receipts()
    finally:
        store_names = {each: name(each) for row in owed for each in (row.requestor, row.helper)}
        store.close()
    if as_json:
        render.print_json(
            {
                "owed": [
                    {
                        "requestor": store_names[each.requestor],
                        "helper": store_names[each.helper],
                        "currency": each.currency,
                        "amount": each.amount,
                        "carried_bytes": each.carried_bytes,
                        "receipts": each.receipts,
                    }
                    for each in owed
                ],
                "receipts": [
                    {
                        "serial": each.serial,
                        "contract": each.contract.hex(),
                        "start_s": each.start_s,
                        "end_s": each.end_s,
                        "up_bytes": each.up_bytes,
                        "down_bytes": each.down_bytes,
                        "amount": each.amount,
                    }
                    for each in all_
                ],
            }
        )
        return
    rows = [
        (
            store_names[each.requestor],
            store_names[each.helper],
            render.size(each.carried_bytes),
            _amount(each.amount, each.currency),
            str(each.receipts),
        )
        for each in owed
    ]
    render.show(render.table(("OWES", "TO", "CARRIED", "AMOUNT", "RECEIPTS"), rows))


@command.command(
    "revoke", cls=Manual,
    examples=[("cedos share revoke bob", "At the gateway, as the user that runs it.")],
    exits=(0, 1, 2), files=[STATE],
)  # fmt: skip
@click.argument("host")
def revoke(host: str) -> None:
    """Withdraw the certificates of HOST at its gateway, so that no neighbour trusts it any more.

    HOST is the name that the host has registered with, or the beginning of its key. Neighbours learn
    of it within seconds and leave the host. It cannot register again with the same keys.
    """
    path = user_folder("state") / "sharing.sqlite"
    if not path.exists():
        raise SharingError(
            f"{path} does not exist: no host is registered here;"
            " the user that runs the gateway would be right"
        )
    store = SharingStore(path)
    try:
        found = store.hosts(host)
        if len(found) != 1:
            keys = ", ".join(f"{key.hex()[:12]} ({name})" for key, name in found.items())
            what = f"several are registered: {keys}" if found else "no such host is registered"
            raise SharingError(f"{host}: {what}")
        ((key, name),) = found.items()
        count = store.revoke(key, SharingClock().now_s())
    finally:
        store.close()
    if count:
        echo(f"Revoked {count} certificate{'s' * (count > 1)} of {name}, key {key.hex()[:12]}.")
    else:
        echo(f"No certificate of {name}, key {key.hex()[:12]}, holds any more.")
