"""The bound of the retransmission time-out, on a kernel in memory."""

import errno

import pytest

from cedos.host.steer.journal_records import RETRANSMISSION, TCP_RETRIES, TCP_RTO_MAX
from cedos.host.steer.steering import Steering

USUAL = {key: usual for key, (usual, _) in RETRANSMISSION.items()}
OURS = {key: ours for key, (_, ours) in RETRANSMISSION.items()}


def now(world):
    return {key: world.kernel.read_sysctl(key) for key in RETRANSMISSION}


async def test_it_is_bounded_while_steering_and_the_bound_is_set_last(world, tmp_path):
    async with Steering(tmp_path, kernel=world.kernel, retransmission=True):
        assert now(world) == OURS
        changed = [line for line in world.kernel.log if any(key in line for key in OURS)]
        assert TCP_RTO_MAX in changed[-1]
    assert now(world) == USUAL


@pytest.mark.parametrize("key", RETRANSMISSION)
async def test_what_the_user_has_set_is_left_alone(world, tmp_path, key):
    world.kernel.sysctls[key] = "7000"
    async with Steering(tmp_path, kernel=world.kernel, retransmission=True):
        assert now(world) == USUAL | {key: "7000"}
    assert now(world) == USUAL | {key: "7000"}


async def test_a_refusal_is_a_problem_and_no_reason_to_end(world, tmp_path):
    write = world.kernel.write_sysctl

    def refuse(key, value):
        if key == TCP_RTO_MAX:
            raise PermissionError(errno.EROFS, "Read-only file system")
        write(key, value)

    world.kernel.write_sysctl = refuse
    async with Steering(tmp_path, kernel=world.kernel, retransmission=True) as steering:
        (problem,) = steering.problems
        assert "Read-only" in problem
    assert world.kernel.sysctls[TCP_RETRIES] == USUAL[TCP_RETRIES]
