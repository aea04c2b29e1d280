"""The time between steps, against sums by hand and by single moments."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchlab.metrics.between import Between

pytestmark = pytest.mark.once


def fed(steps):
    between = Between()
    for step in steps:
        between.add(*step)
    return between


def test_only_gaps_in_which_there_is_work_count():
    """Steps 0-10, 15-20 and 120-130; after the second one nobody is left."""
    between = fed([(0, 10, True), (15, 20, False), (120, 130, True)])
    assert (between.gaps, between.steps) == (5, 25)
    (note,) = between.notes()
    assert note.startswith("17 % of the time in which the engine had work passed between its steps")


def test_a_little_is_no_remark():
    assert fed([(0, 95, True), (100, 195, False)]).notes() == []  # 5 of 195
    assert fed([(0, 45, True), (50, 95, False)]).notes() != []  # 5 of 95
    assert Between().notes() == []


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30), st.booleans()), min_size=1, max_size=12))
def test_every_moment_counts_once(given_steps):
    """Steps may begin before the one before has ended, as asynchronous ones do, but end in order."""
    steps, start, end = [], 0, 0
    for later, took, works in given_steps:
        start, end = start + later, max(end, start + later) + took
        steps.append((start, end, works))
    covered = {t for start, end, _ in steps for t in range(start, end)}
    idle = {t for (_, end, works), (start, _, _) in pairwise(steps) if not works for t in range(end, start)}
    between = fed(steps)
    assert between.steps == len(covered)
    assert between.gaps == len(set(range(steps[0][0], steps[-1][1])) - covered - idle)
