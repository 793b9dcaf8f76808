"""The fail matrix says what happens. Run with `--adapters` only: each fault is tried twice."""

import pytest

from tests.adapter_tools import FRAMEWORKS
from tests.adapters.matrix import measure, rows, sections

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_fail_matrix_says_what_happens(framework):
    shown = sections()[framework]
    assert [row for row in rows(measure(framework)) if row not in shown] == []
