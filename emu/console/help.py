"""Words of `--help` pages that must keep their lines."""


def block(title: str, *lines: str) -> str:
    # The backspace tells click to leave the lines as they are.
    return "\b\n" + "\n".join([f"{title}:", *(f"  {line}" for line in lines)])


def examples(*lines: str) -> str:
    return block("Example" if len(lines) == 1 else "Examples", *lines)
