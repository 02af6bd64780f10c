"""The rules of the house that no linter keeps: small folders, unique names, a map that is true."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache

import pytest

from emu import ROOT

# Modules are parsed once, in one worker.
pytestmark = pytest.mark.xdist_group("house")

MOST_FILES = 20
MOST_LINES = 3000
PACKAGES = sorted(
    path.parent
    for room in ("cedos", "predictors", "emu")
    for path in ROOT.glob(f"{room}/**/__init__.py")
)
MAPS = [
    *(ROOT / "docs" / f"{name}.md" for name in ("architecture", "decisions/README", "gateway")),
    *(ROOT / "docs" / f"{name}.md" for name in ("replay", "sessions", "state")),
    *(ROOT / name for name in ("CONTRIBUTING.md", "README.md")),
]


@cache
def modules(folder):
    return [(path, ast.parse(path.read_text())) for path in sorted(folder.rglob("*.py"))]


def test_folders_stay_small():
    counts = Counter(path.parent for package in PACKAGES for path in package.glob("*.py"))
    assert {str(each.relative_to(ROOT)): n for each, n in counts.items() if n > MOST_FILES} == {}


def test_every_folder_with_modules_is_a_package_that_says_what_it_is_for():
    folders = {
        path.parent
        for room in ("cedos", "predictors", "emu")
        for path in ROOT.glob(f"{room}/**/*.py")
    }
    assert folders == set(PACKAGES)
    silent = [
        str(each.relative_to(ROOT))
        for each in PACKAGES
        if not ast.get_docstring(ast.parse((each / "__init__.py").read_text()))
    ]
    assert silent == []


# Words that end in -ed and are verbs, and what pairs with `ok` in doctor's findings.
VERBS = {"feed", "need", "proceed", "read", "put", "limited"}
NO_VERBS = re.compile(
    r"""
    again | ago | ahead | alive | alone | already | apart | aside | away | because | before | behind
    | below | beside | between | beyond | both | during | enough | ever | exactly | far | first |
    here | just | last | lately | late | later | least | like | most | nearest | next | now | off |
    on | once | one | only | other | others | ours | out | over | past | short | since | some |
    something | soon | still | then | there | through | together | twice | under | until | up | vain
    | what | why | with | within | without | began | begun | broke | came | drawn | found | gave |
    given | gone | grew | grown | heard | held | kept | known | knows | led | left | made | meant |
    risen | sent | shown | spent | stuck | taken | told | went | woke | written
    """,
    re.VERBOSE,
)


def test_functions_are_named_by_verbs_or_nouns():
    """A participle or an adverb alone (`asked`, `beyond`) tells nothing of what a function does."""
    unclear = {}
    for path, tree in (*modules(ROOT / "cedos"), *modules(ROOT / "predictors")):
        bodies = [tree.body, *(each.body for each in tree.body if isinstance(each, ast.ClassDef))]
        for node in (each for body in bodies for each in body):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            kinds = {ast.unparse(each) for each in node.decorator_list}
            word = node.name.strip("_")
            participle = word.endswith("ed") and "_" not in word and word not in VERBS
            if (participle or NO_VERBS.fullmatch(word)) and not kinds & {
                "property",
                "cached_property",
            }:
                unclear[node.name] = str(path.relative_to(ROOT))
    assert unclear == {}


def test_a_class_name_means_one_thing_in_cedos():
    homes = defaultdict(list)
    for path, tree in modules(ROOT / "cedos"):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_class_is_cut_in_slices():
    """A hook that raises NotImplementedError is a class that lies in several files."""
    hooks = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in ("cedos", "predictors", "emu")
        for path, tree in modules(ROOT / room)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node)
    ]
    assert hooks == []


@pytest.mark.parametrize("document", MAPS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_that_documents_name_exist(document):
    text = document.read_text()
    named = set(
        re.findall(r"`((?:cedos|predictors|emu|docs|tests|traces|notebooks)/[\w./-]*)`", text)
    )
    named |= {each for each in re.findall(r"\]\(((?:\.\./)?[\w./-]+)\)", text) if "://" not in each}
    missing = []
    for name in sorted(named):
        beside = document.parent / name
        if not beside.exists() and not (ROOT / name).exists():
            missing.append(name)
    assert missing == []
    assert named


@pytest.mark.parametrize("name", ["security.md", "session-security.md"])
def test_each_promise_names_tests_that_exist(name):
    named = set(
        re.findall(r"`(?:[a-z_/]+/)?(test_\w+)(?:\.py)?`", (ROOT / "docs" / name).read_text())
    )
    there = {file.stem for file in (ROOT / "tests").rglob("test_*.py")}
    assert len(named) >= 10
    assert named <= there, named - there


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "decisions"
    text = (folder / "README.md").read_text()
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert {name for name in pages if f"({name})" not in text} == set()


def test_pages_stay_short():
    """Counts Markdown alone; the list of claims is data."""
    docs = ROOT / "docs"
    pages = [*docs.glob("*.md"), *(docs / "decisions").glob("*.md")]
    assert sum(len(page.read_text().splitlines()) for page in pages) <= MOST_LINES


def test_no_cancellation_is_lost():
    """Python 3.11's `asyncio.wait_for` swallows one that comes as what it waits for is done."""
    users = [
        str(path.relative_to(ROOT))
        for path, tree in modules(ROOT / "cedos")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "wait_for"
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncio"
    ]
    assert users == [], "`async with asyncio.timeout(...)` would be right"


def test_bytes_are_received_after_a_turn_of_other_tasks():
    """The event loop's own call leaves them none while there are bytes: a peer can keep the loop busy."""
    callers = {
        str(path.relative_to(ROOT))
        for path, tree in modules(ROOT / "cedos")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("sock_recv", "sock_recv_into")
    }
    assert callers == {"cedos/kernel/interface_socket.py"}


def test_foreign_text_is_no_message_for_any_reason():
    """A flipped bit kept the daemon from starting: msgspec raises UnicodeDecodeError for it."""
    narrow = {
        str(path.relative_to(ROOT))
        for room in ("cedos", "emu")
        for path, tree in modules(ROOT / room)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("MsgspecError", "DecodeError")
    }
    assert narrow == set()


def test_one_module_tells_of_which_kind_an_interface_is():
    judging = re.compile(
        r"""172\.20\.10|ANDROID_METERED|["'](?:wl|ww|wwan|rmnet|rndis|usb)\d*\*?["']"""
    )
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.glob("cedos/**/*.py")
        if judging.search(path.read_text())
    }
    assert found == {"cedos/kernel/interface_kind.py"}


PRINTERS = {
    "cedos/commands/console/render.py": "the one function",
    "cedos/commands/console/progress.py": "draws a line again in its place",
    "cedos/commands/top.py": "draws a screen",
    "cedos/commands/doctor.py": "has colours",
    "cedos/commands/example.py": "prints files of this package",
    "emu/terminal.py": "draws a bar",
}
"""What prints by itself; each has a test in `test_plain_output`, or prints only cedos' own words."""


def prints(source):
    """Yield the lines that print."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "click.echo", "click.secho", "click.echo_via_pager") or (
                called.startswith(("sys.stdout.", "sys.stderr.")) and called.endswith(".write")
            ):
                yield node.lineno


def test_every_echo_goes_through_one_function():
    files = [
        *(ROOT / "cedos").rglob("*.py"), *(ROOT / "emu" / "commands").glob("*.py"),
        ROOT / "emu" / "terminal.py",
    ]  # fmt: skip
    assert len(files) > 200
    found = {
        str(each.relative_to(ROOT)): lines
        for each in files
        if (lines := list(prints(each.read_text())))
    }
    assert found.keys() == PRINTERS.keys(), {
        name: lines for name, lines in found.items() if name not in PRINTERS
    }


def test_the_walk_finds_what_prints():
    source = "click.echo(name)\nprint(name)\nsys.stderr.write(name)\nwrite(name)\n"
    assert sorted(prints(source)) == [1, 2, 3]
