"""Several cases at a time."""

import threading
import time

import pytest

from monai_sc.functional import threads
from monai_sc.functional.threads import in_threads


@pytest.fixture(params=[1, 2, 16])
def cores(request, monkeypatch):
    monkeypatch.setattr(threads, "_cores", lambda: request.param)
    return request.param


def test_results_come_in_the_order_of_the_items(cores):
    def slow(item):
        time.sleep(0.02 * (item % 3 == 0))
        return item**2

    assert list(in_threads(slow, iter(range(20)))) == [item**2 for item in range(20)]
    assert list(in_threads(slow, [])) == []


def test_no_more_items_are_taken_than_there_are_threads(cores):
    taken, done = [], 0
    caller = threading.get_ident()

    def items():
        for item in range(12):
            assert threading.get_ident() == caller
            taken.append(item)
            yield item

    for _ in in_threads(lambda item: item, items()):
        done += 1
        assert len(taken) <= done + min(cores, threads.MOST)
    assert done == 12


def test_several_run_at_once_where_there_are_cores(monkeypatch):
    monkeypatch.setattr(threads, "_cores", lambda: 16)
    meeting = threading.Barrier(threads.MOST, timeout=20)
    assert len(list(in_threads(lambda _: meeting.wait(), range(2 * threads.MOST)))) == 2 * threads.MOST


def test_error_of_one_item_ends_it(cores):
    seen = []

    def fail(item):
        seen.append(item)
        if item == 3:
            raise ValueError("no")
        return item

    results = []
    with pytest.raises(ValueError, match=r"^no$"):
        results.extend(in_threads(fail, range(100)))
    assert len(seen) <= 3 + 1 + threads.MOST


def test_process_has_at_least_one_core():
    assert threads._cores() >= 1
