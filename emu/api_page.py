"""docs/api.md from the code: every public call, its signature and what its docstring says.

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
from typing import Any, Final

MODULES: Final = (
    ("cedos.session", "asyncio: `from cedos import session`"),
    ("cedos.session.blocking", "BSD-like sockets: `import cedos.session.blocking as socket`"),
    ("cedos.session.known_hosts", "the user's file of servers"),
    ("cedos.session.keys", "key files"),
    ("cedos.prefetch", "fetching ahead of time"),
)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_WIDTH: Final = 96
_HEAD: Final = """# Python API

Made from the code by `python -m emu.api_page`; a test holds it against the code.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name, what in MODULES:
        module = importlib.import_module(name)
        parts.append(f"## {name}\n\n{what}\n")
        parts += _module(module)
    return "\n".join(parts)


def _module(module: types.ModuleType) -> Iterator[str]:
    names = getattr(module, "__all__", None) or [
        name
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", None) == module.__name__
    ]
    constants = []
    for name in names:
        each = getattr(module, name)
        if not inspect.isclass(each) and not inspect.isfunction(each):
            constants.append(name)
        elif inspect.isclass(each):
            yield from _class(name, each)
        else:
            yield from _call(name, each)
    if constants:
        yield f"Constants: {', '.join(f'`{name}`' for name in sorted(constants))}\n"


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### class {name}\n\n{_text(ast.get_docstring(_source(kind)))}"
    if issubclass(kind, enum.Enum):
        yield f"Members: {', '.join(f'`{each.name}`' for each in kind)}\n"
        return
    fields = []
    for node in _source(kind).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields.append(ast.unparse(node))
        if not isinstance(node, _FUNCTIONS):
            continue
        if node.name == "__init__":
            yield _signature(name, node)
        elif not node.name.startswith("_"):
            text = _text(ast.get_docstring(node))
            marks = {ast.unparse(each) for each in node.decorator_list}
            if "property" in marks:
                yield f"#### {name}.{node.name}\n" + (f"\n{text}" if text else "")
            elif not any(mark.endswith(".setter") for mark in marks):
                yield f"#### {name}.{node.name}\n\n{_signature(f'{name}.{node.name}', node)}\n{text}"
    if fields:
        public = [each for each in fields if not each.startswith("_")]
        yield "Fields: " + ", ".join(f"`{each}`" for each in public) + "\n"


def _call(name: str, call: Any) -> Iterator[str]:
    node = _source(call)
    yield f"### {name}\n\n{_signature(name, node)}\n{_text(ast.get_docstring(node))}"


def _source(thing: Any) -> Any:
    """Return the class or function as a syntax tree: annotations and defaults as they were written."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    text = f"{name}({ast.unparse(arguments)})"
    if len(text) > _WIDTH:
        inside = textwrap.indent(textwrap.fill(ast.unparse(arguments), _WIDTH), "    ")
        text = f"{name}(\n{inside}\n)"
    if node.returns is not None and node.name != "__init__":
        text += f" -> {ast.unparse(node.returns).strip(chr(39))}"
    verb = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"```python\n{verb}{text}\n```\n"


def _text(docstring: str | None) -> str:
    """Return the docstring as Markdown: what follows `Args:` and `Raises:` as lists."""
    lines: list[str] = []
    inside = False
    for line in (docstring or "").splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Attributes|Errors)( \(.*\))?:", line):
            lines += [f"*{line[:-1]}*", ""]
            inside = True
        elif inside and re.match(r" {4}\S", line):
            lines.append("- " + line.strip())
        elif inside and line.startswith(" "):
            lines.append("  " + line.strip())
        else:
            inside = inside and not line
            lines.append(line)
    text = "\n".join(lines).strip()
    return f"{text}\n" if text else ""


if __name__ == "__main__":
    sys.stdout.write(page())
