"""The testbed: emulated phones that replay real traces, workloads, policies, runs and reports."""

from pathlib import Path
from typing import Final

# The folder of this checkout: experiments, traces and committed results are read from it.
ROOT: Final = Path(__file__).resolve().parents[1]

# Files that a measurement itself changes; changes there do not make a tree a modified one.
WRITTEN: Final = ("notebooks/results/", "docs/claims.toml", "docs/state.md", "README.md")
