"""Tests that run in a laptop's namespace beside a `Steering` of its networks."""

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from cedos.host.steer.steering import Steering


@asynccontextmanager
async def steering_of(
    host: Any, *, default: str | None = None, **options: Any
) -> AsyncIterator[Steering]:
    """Steer the networks of the fixture `host`."""
    async with Steering(host.directory, **options) as steering:
        await steering.networks_changed(host.networks())
        await steering.barring.take_down_unneeded()
        if default is not None:
            steering.set_default(default)
        yield steering


def steered(
    *,
    default: str | None = None,  # the network that is made the default before the test begins
    unchanged: bool = False,  # assert that the client is at the end as it was before
    **options: Any,  # those of `Steering`
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run a test's coroutine in the client of the fixture `host`, and give it a `steering`."""

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        def run(host: Any, **given: Any) -> None:
            async def body() -> None:
                async with steering_of(host, default=default, **options) as steering:
                    await test(host, steering, **given)

            before = host.state() if unchanged else None
            host.run(body)
            assert not unchanged or host.state() == before

        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined]
        # pytest reads the names of fixtures here.
        wanted = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each for each in wanted if each.name != "steering"]
        )
        return run

    return decorate
