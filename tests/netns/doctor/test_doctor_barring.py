"""The doctor tries the second wall out in a namespace of its own."""

from cedos.doctor import barring
from cedos.doctor.finding import FindingState


def test_it_is_found_and_this_namespace_is_left_alone(make_namespace):
    here = make_namespace("here")
    before = here.run("tc", "qdisc", "show").stdout
    with here.entered():
        assert barring.second_wall().state is FindingState.OK
    assert here.run("tc", "qdisc", "show").stdout == before
