"""Generated sites hold together: what is referred to is there, and weighs what it should."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.host.profiler.sizes import WHOLE
from cedos.model import Direction
from emu.workloads.web.corpus import BEACON, CSS, HTML, SCRIPT, body, generate, nginx_servers, write
from emu.workloads.web.visits import made

seeds = st.integers(0, 10_000)
LINK = re.compile(r"//([a-z0-9.]+\.example)(/[^\"')]+)")


@settings(max_examples=20)
@given(seeds)
def test_bodies_have_the_sizes_they_were_drawn_with(seed):
    (page,) = generate(sites=1, seed=seed).pages
    sizes = [len(body(page.objects, n)) for n, each in enumerate(page.objects) if each.mime]
    assert sizes == [each.size_bytes for each in page.objects if each.mime]
    assert sum(sizes) == page.size_bytes


@settings(max_examples=20)
@given(seeds)
def test_links_lead_to_the_page_s_objects_and_to_each_once(seed):
    (page,) = generate(sites=1, seed=seed).pages
    known = {(each.host, each.path) for each in page.objects}
    found = []
    for number, each in enumerate(page.objects):
        if each.mime in {HTML, CSS, SCRIPT}:
            found += LINK.findall(references(page, number))
    assert set(found) | {(page.document.host, page.document.path)} == known
    assert len(found) == len(set(found)) == len(page.objects) - 1


def references(page, number):
    """An object's text without its noise."""
    text = body(page.objects, number).decode()
    return re.sub(r"<!--.*-->|/\*.*\*/", "", text, flags=re.S)


@settings(max_examples=20)
@given(seeds)
def test_everything_is_asked_for_by_something_that_can(seed):
    (page,) = generate(sites=1, seed=seed).pages
    reached, waiting = set(), [0]
    while waiting:
        number = waiting.pop()
        assert number not in reached
        reached.add(number)
        waiting += page.objects[number].children
    assert reached == set(range(len(page.objects)))
    asking = {each.mime for each in page.objects if each.children}
    assert asking <= {HTML, CSS, SCRIPT}
    assert {HTML, SCRIPT} <= asking, "pictures and data must wait for a script"


def test_pages_weigh_what_real_ones_do():
    corpus = generate(sites=300, seed=7)
    counts = np.array([len(page.objects) for page in corpus.pages])
    sizes = np.array([page.size_bytes for page in corpus.pages])
    assert np.median(counts) == pytest.approx(71, rel=0.15)
    assert np.quantile(counts, 0.9) == pytest.approx(179, rel=0.2)
    assert np.median(sizes) == pytest.approx(2.4e6, rel=0.2)
    assert np.quantile(sizes, 0.9) > 5e6
    objects = list(corpus.objects())
    assert np.mean([each.chunked for each in objects]) == pytest.approx(0.06, abs=0.01)
    with_length = [not each.chunked and each.mime != BEACON for each in objects]
    assert np.mean(with_length) == pytest.approx(0.85, abs=0.02)


def test_files_stand_where_nginx_looks(tmp_path):
    corpus = generate(sites=2, seed=3)
    write(corpus, tmp_path)
    for each in corpus.objects():
        file = tmp_path / each.host / each.path.lstrip("/")
        assert file.exists() == (each.mime != BEACON)
        if file.exists():
            assert file.stat().st_size == each.size_bytes
    configuration = nginx_servers(corpus, tmp_path, tls=True, http2=True)
    assert "listen 443 ssl http2;" in configuration
    assert all(f" {host}" in configuration for host in corpus.hosts)
    assert "443" not in nginx_servers(corpus, tmp_path, tls=False)


def test_the_shipped_prior_is_the_one_that_is_made():
    assert WHOLE[443, Direction.DOWN] == made()
