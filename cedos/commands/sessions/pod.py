"""`cedos-pod`: the morning's episodes are on the laptop before the train leaves."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource

from cedos.api.asking import DaemonChooser
from cedos.commands.console import render
from cedos.commands.console.manual import Program, json_option, say
from cedos.commands.console.progress import size
from cedos.commands.console.render import plain
from cedos.commands.console.servers import interfaces
from cedos.commands.sessions.transfers import interruptible, networks_option, say_if_closed
from cedos.config.directories import directories, user_folder
from cedos.errors import CedosError, ConfigError, TransferError, WebError
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState
from cedos.files.podcasts.episode_transfer import carried, forget, here_bytes
from cedos.files.podcasts.feed_reading import read_feed
from cedos.files.podcasts.fetching import EpisodeFetching
from cedos.files.podcasts.leading_networks import LeadingNetworks
from cedos.files.podcasts.subscriptions import Subscription, Subscriptions, check

_AGAIN_S: Final = 1800.0
_FAILED_S: Final = 60.0


def _state() -> Path:
    return user_folder("state") / "podcasts.json"


@click.command(
    "cedos-pod",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        (
            "cedos-pod --add https://example.org/feed.xml --name news --by 07:00",
            "Subscribes: new episodes shall be here at seven.",
        ),
        ("cedos-pod", "Looks for new episodes and brings what is wanted, then ends."),
        ("cedos-pod --stay", "Goes on, and looks again every half hour."),
        ("cedos-pod --list", "What is here, what is wanted until when, and what it cost."),
        ("cedos-pod --remove news", "Ends a subscription; files stay."),
    ],
    exits={
        0: "Everything that was wanted is here.",
        1: "A feed or an episode could not be had; all others were.",
        2: "",
        130: "Interrupted by Ctrl-C. What has come is kept.",
    },
    files=[
        ("~/.config/cedos/podcasts.toml", "Subscriptions, to be edited by hand."),
        ("~/.local/state/cedos/podcasts.json", "What is wanted and what is here."),
    ],
)
@click.option(
    "--add", metavar="URL",
    help="Subscribe to an RSS feed; again, with the same name: change its --by or --keep.",
)  # fmt: skip
@click.option("--name", metavar="NAME", help="With --add: what it is called.  [default: its host]")
@click.option(
    "--by", default="07:00", show_default=True, metavar="TIME",
    help="With --add: the time of day until when new episodes shall be here.",
)  # fmt: skip
@click.option(
    "--keep", default=3, show_default=True, type=click.IntRange(1, 1000),
    help="With --add: so many of the newest are wanted.",
)  # fmt: skip
@click.option("--remove", metavar="NAME", help="End a subscription.")
@click.option("--list", "listed", is_flag=True, help="Show subscriptions and episodes.")
@click.option("--stay", is_flag=True, help="Do not end: look for new episodes every half hour.")
@click.option(
    "-o", "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("~/Podcasts"),
    help="Where episodes go to, a folder for each podcast.  [default: ~/Podcasts]",
)  # fmt: skip
@click.option(
    "--proxy", metavar="URL",
    help="Fetch through a proxy, as http://127.0.0.1:1080 of `cedos forward`.",
)  # fmt: skip
@networks_option
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
@json_option
@click.version_option(package_name="cedos", prog_name="cedos-pod")
def command(
    add: str | None,
    name: str | None,
    by: str,
    keep: int,
    remove: str | None,
    listed: bool,
    stay: bool,
    folder: Path,
    proxy: str | None,
    networks: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Brings the episodes of podcasts until the time when they are wanted.

    Over Wi-Fi they come at once. A metered network is used only from the moment on when an episode
    would else be late, and left when Wi-Fi is back. What has come of an episode is kept, whatever
    ends: this program, the laptop, the network; the next run goes on there, if the server still has
    the same file. Feeds come over whatever network there is.

    --add reads the feed once: what is none, or is not there, is refused; where its server or the network
    is away, that is said, and it is kept.

    An episode that does not come is tried again until its deadline, after pauses that grow to an hour;
    the others come meanwhile, and `cedos transfers` says when it is tried again and why. Without --stay
    it is left to the next run once its deadline has passed and it was tried four times in vain. While
    no network leads there, nothing is tried, and all wait.
    """
    subscriptions = Subscriptions()
    if sum((add is not None, remove is not None, listed)) > 1:
        raise click.UsageError("one of --add, --remove and --list")
    given = _given("name", "by", "keep")
    if given and add is None:
        raise click.UsageError(f"--{given[0]} goes with --add")
    interfaces(networks)
    only = networks.__contains__ if networks else lambda _interface: True

    def leading() -> LeadingNetworks:
        return LeadingNetworks(only, DaemonChooser(directories().socket))

    if add is not None:
        try:
            check(add, by, "--add", "--by")
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        name = name or urlsplit(add).hostname or "podcast"
        said = _subscribe(name, Subscription(add, by, keep), given, leading, proxy)
        if not quiet:
            after = (
                "`cedos-pod` brings its newest episodes now, `cedos-pod --stay` also those to come"
            )
            click.echo(f"{said}; {after}", err=as_json)
        return
    book = EpisodeBook(_state())
    if remove is not None:
        _unsubscribe(remove, subscriptions, book)
        return
    if listed:
        _list(subscriptions.all(), book, as_json)
        return
    if not subscriptions.all():
        raise ConfigError("there is no subscription yet; `cedos-pod --add URL` makes one")
    told: Callable[[str], None] = (
        (lambda _text: None) if quiet else lambda text: click.echo(plain(text), err=as_json)
    )
    if not quiet:
        say_if_closed("cedos-pod")
    fetching = EpisodeFetching(
        book,
        folder.expanduser(),
        told,
        proxy,
        leading(),
        lambda text: say("cedos-pod", TransferError(text)),
    )
    looks = _Looks(subscriptions, fetching, told)
    try:
        interruptible(_bring(looks, fetching, stay=stay))
    finally:
        fetching.close()
    if as_json:
        _list(subscriptions.all(), book, as_json)
    click.get_current_context().exit(int(looks.failed or fetching.missing > 0))


class _Looks:
    """Reads the feeds; `failed`: one of them did not come."""

    def __init__(
        self, subscriptions: Subscriptions, fetching: EpisodeFetching, told: Callable[[str], None]
    ) -> None:
        self._subscriptions, self._fetching, self._told = subscriptions, fetching, told
        self.failed = False

    async def once(self) -> bool:
        """All at once, as one whose server is silent shall not keep the others; whether all came."""
        known = self._subscriptions.all()
        return all(await asyncio.gather(*(self._at(*each) for each in known.items())))

    async def again_and_again(self) -> None:
        while True:
            pause_s = _AGAIN_S if await self.once() else _FAILED_S
            await asyncio.sleep(pause_s)

    async def _at(self, title: str, each: Subscription) -> bool:
        try:
            new = await self._fetching.update(title, each)
        except ConfigError:
            raise
        except CedosError as error:
            self.failed = True
            say("cedos-pod", type(error)(f"{title}: {error}"))
            return False
        self._told(f"{title}: {new} new episode{'s' * (new != 1)}, wanted by {each.by}")
        return True


async def _bring(looks: _Looks, fetching: EpisodeFetching, *, stay: bool) -> None:
    if not stay:
        await looks.once()
        await fetching.run()
        return
    both = (looks.again_and_again(), fetching.run(stay=True))
    tasks = [asyncio.ensure_future(each) for each in both]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _subscribe(
    name: str,
    wanted: Subscription,
    given: list[str],
    leading: Callable[[], LeadingNetworks],
    proxy: str | None,
) -> str:
    """Takes a subscription, or changes what was `given` of one; says what is so from now on."""
    known = Subscriptions().free(name, wanted.url)
    if known is not None:
        kept = {each: getattr(known, each) for each in ("by", "keep") if each not in given}
        wanted = msgspec.structs.replace(wanted, **kept)
        _add(name, wanted, None)
    else:
        away = _look_once(wanted.url, leading(), proxy)
        _add(name, wanted, away)
        if away is not None:
            later = "it is kept, and read at the next look"
            say("cedos-pod", WebError(f"{name}: it could not be read now: {away}; {later}"))
    changed = "" if known is None else "changed; "
    return f"{name}: {changed}new episodes shall be here by {wanted.by}"


def _unsubscribe(name: str, subscriptions: Subscriptions, book: EpisodeBook) -> None:
    subscriptions.remove(name)
    for each in book.wanted():
        if each.podcast == name:
            forget(each)
    book.forget(name)
    book.save()


def _look_once(url: str, networks: LeadingNetworks, proxy: str | None) -> WebError | None:
    """Why a feed cannot be read now; None: it can.

    Raises:
        TransferError: it is no feed, or not there.
    """
    away: WebError | None = None

    async def look() -> None:
        nonlocal away
        try:
            await read_feed(url, networks, proxy)
        except WebError as error:
            away = error

    try:
        interruptible(look())
    finally:
        networks.close()
    return away


def _add(name: str, subscription: Subscription, away: WebError | None) -> None:
    """Subscribes, or changes what was; the book is read now, as another program may have it."""
    subscriptions = Subscriptions()
    known = subscriptions.all().get(name)
    subscriptions.add(name, subscription)
    book = EpisodeBook(_state())
    if known is not None and known.by != subscription.by:
        book.wanted_by(name, subscription.next_unix_s())
    elif away is not None:
        book.feed_errors[name] = str(away)
    else:
        return
    book.save()


def _given(*names: str) -> list[str]:
    """Those of these options that are on the command line."""
    source = click.get_current_context().get_parameter_source
    return [each for each in names if source(each) is not ParameterSource.DEFAULT]


def _list(known: dict[str, Subscription], book: EpisodeBook, as_json: bool) -> None:
    if as_json:
        facts: list[dict[str, Any]] = [
            {
                "podcast": each.podcast, "title": each.title, "state": each.state.value,
                "by": datetime.fromtimestamp(each.by_unix_s).isoformat(timespec="seconds"),
                "in_time": each.state is EpisodeState.HERE and each.came_unix_s <= each.by_unix_s,
                "file": each.file, "why": each.why,
                "size_bytes": each.size_bytes or None, "here_bytes": here_bytes(each),
                "bytes_by_network": carried(each).by_network, **_carried(each),
            }
            for each in book.episodes
        ]  # fmt: skip
        subscriptions = [
            {
                "name": name, "url": each.url, "by": each.by, "keep": each.keep,
                "error": book.feed_errors.get(name),
            }
            for name, each in sorted(known.items())
        ]  # fmt: skip
        render.print_json({"subscriptions": subscriptions, "episodes": facts})
        return
    if not known:
        click.echo("no podcasts yet; cedos-pod --add URL --name NAME --by 07:00 subscribes to one")
    for name, subscription in known.items():
        click.echo(f"{name}  (by {subscription.by}, {subscription.url})")
        if name in book.feed_errors:
            click.echo(plain(f"  the feed could not be read: {book.feed_errors[name]}"))
        for each in book.episodes:
            if each.podcast == name:
                count = _carried(each)
                came = (
                    f"{size(count['unmetered_bytes'])} free, {size(count['metered_bytes'])} metered"
                )
                if count["earlier_bytes"]:
                    came += f", {size(count['earlier_bytes'])} earlier"
                by = datetime.fromtimestamp(each.by_unix_s)
                what = {
                    EpisodeState.WANTED: f"{_here(each)}wanted by {by:%a %H:%M}{_last_try(each)}",
                    EpisodeState.HERE: "here",
                    EpisodeState.REFUSED: each.why,
                }[each.state]
                click.echo(plain(f"  {each.title}: {what}; {came}"))


def _here(each: EpisodeRecord) -> str:
    have = here_bytes(each)
    whole = f" of {size(each.size_bytes)}" if each.size_bytes else ""
    return f"{size(have)}{whole} here, " if have else ""


def _carried(each: EpisodeRecord) -> dict[str, int]:
    """By kind of network; of what came `earlier` nobody knows that any more."""
    noted = carried(each)
    total = sum(noted.by_network.values())
    return {
        "unmetered_bytes": max(total - noted.metered_bytes, 0),
        "metered_bytes": noted.metered_bytes,
        "earlier_bytes": max(here_bytes(each) - total, 0),
    }


def _last_try(each: EpisodeRecord) -> str:
    return f" (last tried in vain: {each.why})" if each.why else ""


def main() -> None:
    command(prog_name="cedos-pod")
