from emu.workloads.web import corpus
from emu.workloads.web.visits import plan

CORPUS = corpus.generate(sites=6, pages=3, seed=5)


def test_most_visits_are_to_known_pages_whose_static_parts_are_kept() -> None:
    visits = list(plan(CORPUS, 40, seed=3))
    assert visits == list(plan(CORPUS, 40, seed=3))
    again = [visit for visit in visits if visit.again]
    assert 0.35 < len(again) / len(visits) < 0.8
    assert not visits[0].again
    pages = {page.document.url(): page for page in CORPUS.pages}
    for visit in visits:
        whole = pages[visit.objects[0].url()]  # documents are fetched anew each time
        share = len(visit.objects) / len(whole.objects)
        assert share == 1.0 if not visit.again else share < 0.9


def test_it_ends_where_there_is_nothing_new() -> None:
    visits = list(plan(CORPUS, 10_000, seed=1))
    assert len(visits) < 10_000
    assert sum(not visit.again for visit in visits) == len(CORPUS.pages)
