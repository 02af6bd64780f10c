"""`cedos-pod`: the morning's episodes are on the laptop before the train leaves."""

import asyncio
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgspec

from cedos.api.asking import DaemonChooser
from cedos.apps.files.podcast_library import Episode, EpisodeState, Library, Subscription, read_feed
from cedos.apps.files.podcasts import EpisodeFetching
from cedos.apps.files.web_getting import LeadingNetworks
from cedos.commands.console.manual import Program, json_option, say
from cedos.commands.console.progress import size
from cedos.commands.console.render import echo, print_json
from cedos.commands.sessions.shared.transfers import interruptible, say_if_closed
from cedos.config.directories import directories, user_folder
from cedos.errors import ConfigError, TransferError, WebError
from cedos.session import keys

_AGAIN_S: Final = 1800.0
_FAILED_S: Final = 60.0


@click.command(
    "cedos-pod",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        (
            "cedos-pod --add https://example.org/feed.xml --name news --by 07:00",
            "Subscribe: new episodes shall be here at seven.",
        ),
        ("cedos-pod", "Look for new episodes, bring what is wanted, and end."),
        ("cedos-pod --stay", "Go on, and look again every half hour."),
        ("cedos-pod --list", "Show what is here, and what is wanted until when."),
        ("cedos-pod --remove news", "End a subscription; files stay."),
    ],
    exits={
        0: "Everything that was wanted is here.",
        1: "A feed or an episode could not be had; all others were.",
        2: "",
        130: "Interrupted by Ctrl-C. Received bytes are kept.",
    },
    files=[
        ("~/.config/cedos/podcasts.toml", "Subscriptions, to be edited by hand."),
        ("~/.local/state/cedos/podcasts.json", "What is wanted and what is here."),
    ],
)
@click.option("--add", metavar="URL", help="Subscribe to a feed, or change --by or --keep of one.")
@click.option("--name", metavar="NAME", help="With --add: the podcast's name.  [default: its host]")
@click.option(
    "--by", metavar="TIME",
    help="With --add: the time of day until when new episodes shall be here.  [default: 07:00]",
)  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(1, 1000),
    help="With --add: the number of newest episodes that are wanted.  [default: 3]",
)  # fmt: skip
@click.option("--remove", metavar="NAME", help="End a subscription.")
@click.option("--list", "listed", is_flag=True, help="Show subscriptions and episodes.")
@click.option("--stay", is_flag=True, help="Do not end: look for new episodes every half hour.")
@click.option(
    "-o", "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("~/Podcasts"),
    help="The folder of all podcasts' folders.  [default: ~/Podcasts]",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@json_option
@click.version_option(package_name="cedos", prog_name="cedos-pod")
def command(
    add: str | None, name: str | None, by: str | None, keep: int | None, remove: str | None, listed: bool,
    stay: bool, folder: Path, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Bring the episodes of podcasts until the time when they are wanted.

    Over Wi-Fi they come at once. A metered network is used only from the moment on when an episode
    would else be late, and left when Wi-Fi is back. Received bytes are kept, whatever ends: this program,
    the laptop, the network. The next run continues them if the server still has the same file.

    --add reads the feed once, and refuses what is no feed.

    A failed episode is tried again until its deadline, after pauses that grow to an hour; the others come
    meanwhile, and `cedos transfers` shows when it is tried again and why. Without --stay the program
    leaves it to the next run once its deadline has passed and four attempts have failed.
    """
    if sum((add is not None, remove is not None, listed)) > 1:
        raise click.UsageError("--add, --remove and --list exclude each other")
    if add is None and (name or by or keep):
        raise click.UsageError("--name, --by and --keep go with --add")
    library = Library(keys.folder() / "podcasts.toml", user_folder("state") / "podcasts.json")
    if add is not None:
        interruptible(_add(library, name or urlsplit(add).hostname or "podcast", add, by, keep))
        return
    if remove is not None:
        library.unsubscribe(remove)
        library.save_subscriptions()
        library.save()
        return
    if not listed:
        if not library.podcasts:
            raise ConfigError("there is no subscription yet; `cedos-pod --add URL` makes one")
        if not quiet:
            say_if_closed("cedos-pod")
        missing: list[bool] = []
        interruptible(_bring(library, folder.expanduser(), missing, stay=stay, quiet=quiet))
        click.get_current_context().exit(int(any(missing)))
    if as_json:
        _print_json(library)
    else:
        _print(library)


async def _add(library: Library, name: str, url: str, by: str | None, keep: int | None) -> None:
    known = library.podcasts.get(name)
    try:
        usual = Subscription(url) if known is None else known
        wanted = Subscription(url, by or usual.by, keep or usual.keep)
    except ValueError as error:
        raise click.UsageError(f"--add: {error}") from None
    library.subscribe(name, wanted)
    networks = _networks()
    try:
        if known is None:
            await read_feed(url, networks)
    except WebError as error:
        say("cedos-pod", WebError(f"{name}: {error}; the next run reads the feed again"))
    finally:
        networks.close()
    library.save_subscriptions()
    library.save()
    echo(f"{name}: new episodes shall be here by {wanted.by}; `cedos-pod` brings them")


def _networks() -> LeadingNetworks:
    return LeadingNetworks(DaemonChooser(directories().socket))


async def _bring(
    library: Library, folder: Path, missing: list[bool], *, stay: bool, quiet: bool
) -> None:
    """Read the feeds and bring the episodes; `missing` receives True for each that could not be had."""

    def tell(text: str) -> None:
        if not quiet:
            echo(text)

    def complain(text: str) -> None:
        missing.append(True)
        say("cedos-pod", TransferError(text))

    async def read(name: str, wanted: Subscription) -> bool:
        try:
            new = library.add_new(name, await read_feed(wanted.url, networks), folder)
        except TransferError as error:
            complain(f"{name}: {error}")
            return False
        tell(f"{name}: {new} new episode{'s' * (new != 1)}, wanted by {wanted.by}")
        return True

    async def read_all(*, again: bool) -> None:
        while True:
            library.read_subscriptions()
            read_well = await asyncio.gather(*(read(*each) for each in library.podcasts.items()))
            if not again:
                return
            await asyncio.sleep(_AGAIN_S if all(read_well) else _FAILED_S)

    networks = _networks()
    fetching = EpisodeFetching(library, networks, tell, complain)
    # With --stay feeds are read beside the transfers, else once before them.
    reading = asyncio.ensure_future(read_all(again=stay))
    try:
        if not stay:
            await reading
        await fetching.run(stay=stay)
    finally:
        reading.cancel()
        await asyncio.wait({reading})
        networks.close()


def _print_json(library: Library) -> None:
    episodes: list[dict[str, Any]] = []
    for each in library.episodes:
        shown = {name: value for name, value in msgspec.to_builtins(each).items() if name != "guid"}
        in_time = each.state is EpisodeState.HERE and each.came_unix_s <= each.by_unix_s
        episodes.append(shown | {"here_bytes": each.here_bytes(), "in_time": in_time})
    podcasts = [
        {"name": name, **msgspec.to_builtins(each)} for name, each in library.podcasts.items()
    ]
    print_json({"subscriptions": podcasts, "episodes": episodes})


def _print(library: Library) -> None:
    if not library.podcasts:
        echo("no podcasts yet; cedos-pod --add URL --name NAME --by 07:00 subscribes to one")
    for name, wanted in library.podcasts.items():
        echo(f"{name}  (by {wanted.by}, {wanted.url})")
        for each in library.episodes:
            if each.podcast == name:
                echo(f"  {each.title}: {_state(each)}")


def _state(each: Episode) -> str:
    if each.state is not EpisodeState.WANTED:
        return "here" if each.state is EpisodeState.HERE else each.why
    have = each.here_bytes()
    whole = f" of {size(each.size_bytes)}" if each.size_bytes else ""
    tried = f" (last attempt: {each.why})" if each.why else ""
    here = f"{size(have)}{whole} here, " if have else ""
    return f"{here}wanted by {datetime.fromtimestamp(each.by_unix_s):%a %H:%M}{tried}"


def main() -> None:
    command(prog_name="cedos-pod")
