"""The shipped model."""

from functools import cache

from cedos.storage import model_files
from predictors.completion import CompletionModel


@cache
def shipped() -> CompletionModel:
    """Return the shipped model. A process reads it once, which takes half a second."""
    return model_files.load()
