"""Pages without their pictures, whose drawing takes seconds."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def no_pictures(monkeypatch):
    """Leave all pictures empty, for tests that read a page's text only."""
    monkeypatch.setattr(Figure, "savefig", lambda _figure, file, **_: file.write(b""))
