"""The folder of this checkout: experiments, traces and committed results are read from it."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
