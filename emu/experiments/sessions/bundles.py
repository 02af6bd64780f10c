"""The bundle protocol as a peer of the session, where `pyd3tn` is installed (it is no dependency)."""

import importlib.util


def installed() -> bool:
    """Whether there is a bundle protocol to compare with: `pip install pyd3tn`."""
    return importlib.util.find_spec("pyd3tn") is not None
