"""`cedos-pod`: the morning's episodes are on the laptop before the train leaves."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import click

from cedos.api.asking import DaemonChooser
from cedos.apps.files.podcast_library import Library, Subscription, read_feed
from cedos.apps.files.podcasts import EpisodeFetching
from cedos.apps.files.web_getting import LeadingNetworks
from cedos.commands.console.manual import Program, say
from cedos.commands.console.render import echo
from cedos.commands.console.transfers import interruptible, say_if_closed
from cedos.commands.console.user_rules import RuledNetworks
from cedos.config.directories import directories, user_folder
from cedos.errors import ConfigError, TransferError
from cedos.session import keys

_AGAIN_S: Final = 1800.0
_FAILED_S: Final = 60.0
# Threads that look names up: one that no server answers for keeps its own for a minute.
_THREADS: Final = 256


@click.command(
    "cedos-pod",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        ("cedos-pod", "Look for new episodes, bring what is wanted, and end."),
        ("cedos-pod --stay", "Go on, and look again every half hour."),
        ("cedos transfers", "Show each episode that waits: for what, and when it must begin."),
    ],
    exits={
        0: "Everything that was wanted is here.",
        1: "A feed or an episode could not be had; all others were.",
        2: "",
        130: "Interrupted by Ctrl-C. Received bytes are kept.",
    },
    files=[
        ("~/.config/cedos/podcasts.toml", "Podcasts, written by hand."),
        ("~/.local/state/cedos/podcasts.json", "What is wanted and what is here."),
    ],
)
@click.option("--stay", is_flag=True, help="Do not end: look for new episodes every half hour.")
@click.option(
    "-o", "--folder", type=click.Path(path_type=Path, file_okay=False), default=Path("~/Podcasts"),
    help="The folder of all podcasts' folders.  [default: ~/Podcasts]",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print only errors.")
@click.version_option(package_name="cedos", prog_name="cedos-pod")
def command(stay: bool, folder: Path, quiet: bool) -> None:
    """Bring the episodes of podcasts until the time when they are wanted.

    Podcasts are in the file podcasts.toml: in [podcasts.NAME] each has the `url` of its feed, the
    time of day `by` when new episodes are wanted (07:00), and how many of the newest to `keep` (3).
    A feed brings 8 GB a day at most; the rest comes on the next one.

    Over Wi-Fi they come at once. A metered network is used only from the moment on when an episode
    would else be late, and left when Wi-Fi is back. Received bytes are kept, whatever ends: this program,
    the laptop, the network. The next run continues them if the server still has the same file.

    A failed episode is tried again until its deadline, after pauses that grow to an hour; the others come
    meanwhile, and `cedos transfers` shows when it is tried again and why. Without --stay the program
    leaves it to the next run once its deadline has passed and four attempts have failed.
    """
    book, missing = user_folder("state") / "podcasts.json", list[bool]()
    with keys.changed_alone(book):  # each run writes it as a whole
        library = Library(keys.folder() / "podcasts.toml", book)
        if not quiet:
            say_if_closed("cedos-pod")
        interruptible(_bring(library, folder.expanduser(), missing, stay=stay, quiet=quiet))
    click.get_current_context().exit(int(any(missing)))


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
        failures = 0
        while True:
            read_well = await asyncio.gather(*(read(*each) for each in library.podcasts.items()))
            if not again:
                return
            # A feed that is gone for good must not have all of them read each minute.
            failures = 0 if all(read_well) else failures + 1
            soon_s = _FAILED_S * 2.0 ** min(failures - 1, 20)
            await asyncio.sleep(min(soon_s, _AGAIN_S) if failures else _AGAIN_S)
            try:
                library.read_subscriptions()
            except ConfigError as error:  # the user is writing it
                complain(str(error))

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    chooser = DaemonChooser(directories().socket)
    networks = LeadingNetworks(chooser)
    ruled = RuledNetworks(directories().socket, chooser.forget, networks.egresses)
    await ruled.follow()
    networks.forbids = ruled.refusal
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
        await ruled.close()
        networks.close()


def main() -> None:
    command(prog_name="cedos-pod")
