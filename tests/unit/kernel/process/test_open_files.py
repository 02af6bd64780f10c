"""The process's own limit on open files."""

import resource

import pytest

from cedos.kernel.process import open_files


@pytest.mark.parametrize(
    ("now", "wanted", "has", "given"),
    [
        ((1024, 524_288), 16_384, 16_384, [(16_384, 524_288)]),
        ((1024, 4096), 16_384, 4096, [(4096, 4096)]),
        ((16_384, 524_288), 16_384, 16_384, []),
        ((20_000, 524_288), 16_384, 20_000, []),
        ((1024, 524_288), None, 524_288, [(524_288, 524_288)]),
    ],
)
def test_the_limit_is_raised(
    monkeypatch: pytest.MonkeyPatch,
    now: tuple[int, int],
    wanted: int | None,
    has: int,
    given: list[tuple[int, int]],
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: now)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert open_files.allow(wanted) == has
    assert asked == given


def test_a_limit_that_cannot_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: tuple[int, int]) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert open_files.allow() == 1024
