"""docs/api.md from the code: every public call, its signature and the summary of its docstring.

`python -m emu.api_page > docs/api.md` after a change; a test holds the page against the code.
"""

import ast
import enum
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any, Final, TypeVar

MODULES: Final = (
    ("cedos.session", "asyncio: `from cedos import session`"),
    ("cedos.session.blocking", "BSD-like sockets for programs without asyncio"),
    ("cedos.session.known_hosts", "the user's file of servers"),
    ("cedos.session.keys", "key files"),
    ("cedos.apps.prefetch", "fetching ahead of time"),
)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_HEAD: Final = """# Python API

Generated from the code by `python -m emu.api_page`, which a test repeats. Each line has a call, and
the summary of its docstring; those without one stand together at the end. `help()` in Python shows the
whole docstring. `await` marks a coroutine.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name, what in MODULES:
        module = importlib.import_module(name)
        parts.append(f"## {name}: {what}\n")
        parts += _module(module)
    # Functions that follow each other are one list, and a list may follow its heading.
    text = re.sub(r"(?m)^(- .*)\n\n(?=- )", r"\1\n", "\n".join(parts))
    return re.sub(r"(?m)^(###? .*)\n\n(?![#])", r"\1\n", text)


def _module(module: types.ModuleType) -> Iterator[str]:
    names = getattr(module, "__all__", None) or [
        name
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", None) == module.__name__
    ]
    constants = []
    for name in names:
        each = getattr(module, name)
        if isinstance(each, TypeVar):
            continue
        if not inspect.isclass(each) and not inspect.isfunction(each):
            constants.append(name)
        elif inspect.isclass(each):
            yield from _class(name, each)
        else:
            yield from _call(name, each)
    if constants:
        yield f"Constants: {', '.join(f'`{name}`' for name in sorted(constants))}\n"


def _class(name: str, kind: type) -> Iterator[str]:
    """Yield the class with its summary, then one line for each public call, property and field."""
    node = _source(kind)
    summary = _summary(node)
    lines = [f"### {name}: {summary}\n" if summary else f"### {name}\n"]
    if issubclass(kind, enum.Enum):
        lines.append(f"Members: {', '.join(f'`{each.name}`' for each in kind)}\n")
        yield "\n".join(lines)
        return
    members: list[str] = []
    plain: list[str] = []
    fields: list[str] = []
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            if not each.target.id.startswith("_"):
                fields.append(f"`{ast.unparse(each)}`")
        elif isinstance(each, _FUNCTIONS) and not each.name.startswith("_"):
            marks = {ast.unparse(mark) for mark in each.decorator_list}
            if any(mark.endswith(".setter") for mark in marks):
                continue
            text = f"`{each.name}`" if "property" in marks else f"`{_signature(each)}`"
            said = _summary(each)
            (members if said else plain).append(_item(text, said) if said else text)
    if fields:
        lines.append(f"Fields: {', '.join(fields)}\n")
    if plain:
        members.append(f"- {', '.join(plain)}")
    if members:
        lines.append("\n".join(members) + "\n")
    yield "\n".join(lines)


def _call(name: str, call: Any) -> Iterator[str]:
    node = _source(call)
    yield _item(f"`{_signature(node, name)}`", _summary(node)) + "\n"


def _item(text: str, summary: str) -> str:
    return f"- {text}: {summary}" if summary else f"- {text}"


def _source(thing: Any) -> Any:
    """Return the class or function as a syntax tree: annotations and defaults as written."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    text = f"{name or node.name}({ast.unparse(arguments)})"
    if (
        node.returns is not None
        and (returned := ast.unparse(node.returns).strip(chr(39))) != "None"
    ):
        text += f" -> {returned}"
    return f"await {text}" if isinstance(node, ast.AsyncFunctionDef) else text


def _summary(node: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    text = ast.get_docstring(node) or ""
    return " ".join(text.partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.stdout.write(page())
