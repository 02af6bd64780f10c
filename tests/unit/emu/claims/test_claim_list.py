"""The list is read strictly; numbers in braces are compared at the digits that they show."""

import pytest

from cedos.errors import ConfigError
from emu.claims import claim_list

SOURCE = """
[sources.s]
file = "s.json"
command = "true"
commit = "unknown"
date = 2026-11-28
kind = "computed"
places = "none"
configuration = "none"

"""
CLAIM = """[[claim]]
name = "c"
paper = "dtp"
item = "Table 1"
verdict = "reproduced"
source = "s"
ours = "{0.67} [{-0.10}, {2.00}] of {4,092}"
from = ["/v", "/v_ci95", "/n"]

"""
FILE = {"v": 0.6666, "v_ci95": [-0.1, 1.999], "n": 4092}


def claims(tmp_path, text):
    file = tmp_path / "claims.toml"
    file.write_text(text)
    return claim_list.read(file)


def test_numbers_agree_at_the_digits_that_are_shown(tmp_path):
    found = claims(tmp_path, SOURCE + CLAIM)
    (each,) = found.claim
    assert claim_list.computed(each, found, lambda _: FILE) == each.ours
    assert each.shown == "0.67 [-0.10, 2.00] of 4,092"
    changed = {**FILE, "v": 0.64, "v_ci95": [-0.001, 1.2]}
    computed = claim_list.computed(each, found, lambda _: changed)
    assert computed == "{0.64} [{0.00}, {1.20}] of {4,092}"


def test_a_changed_file_rewrites_this_claim_alone(tmp_path, monkeypatch):
    other = CLAIM.replace('name = "c"', 'name = "d"').replace('"/v", ', '"1 - /v", ')
    text = SOURCE + CLAIM + other
    found = claims(tmp_path, text)
    monkeypatch.setattr(
        claim_list,
        "computed",
        lambda claim, _: claim.ours.replace("0.67", "0.33") if claim.name == "d" else claim.ours,
    )
    written = claim_list.rewritten(text, found)
    assert written == SOURCE + CLAIM + other.replace("0.67", "0.33")


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('verdict = "reproduced"', 'verdict = "perhaps"'),
        ('paper = "dtp"', 'paper = "other"'),
        ('source = "s"', 'source = "t"'),
        ('item = "Table 1"', 'item = "Table 1"\nmood = "good"'),
    ],
)
def test_what_the_list_does_not_know_is_refused(tmp_path, was, becomes):
    with pytest.raises(ConfigError):
        claims(tmp_path, SOURCE + CLAIM.replace(was, becomes))
    with pytest.raises(ConfigError, match="two claims"):
        claims(tmp_path, SOURCE + CLAIM + CLAIM)


def test_what_was_not_tested_says_why_and_what_was_has_a_source(tmp_path):
    bare = '[[claim]]\nname = "c"\npaper = "dtp"\nitem = "Table 1"\n'
    found = claims(tmp_path, SOURCE + bare + 'verdict = "not tested"\n')
    assert any("`why` is missing" in each for each in claim_list.problems(found))
    found = claims(tmp_path, SOURCE + bare + 'verdict = "reproduced"\n')
    assert any("`source` is missing" in each for each in claim_list.problems(found))
