"""The folder of this checkout: experiments, traces and committed results are read from it."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

# Files that a measurement itself changes; changes there do not make a tree a modified one.
WRITTEN: Final = ("notebooks/results/", "docs/claims.toml", "docs/state.md", "README.md")
