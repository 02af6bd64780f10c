from cedos.model import Direction
from cedos.profiler.sizes import WHOLE
from emu.workloads.web.visits import fitted, made


def test_the_shipped_prior_is_the_one_that_is_made() -> None:
    assert WHOLE[443, Direction.DOWN] == made()


def test_a_log_normal_sample_gives_its_parameters_back() -> None:
    sizes = list(range(1, 1002))
    assert fitted([1000] * 50).sigma == 0.0
    assert fitted(sizes).median_bytes == 500
