"""Upstream's own operator tests pass on our device, and it is our pool that they test."""

from __future__ import annotations

import pytest

from tests.upstream.runs import BOUNDED, Run, execute


@pytest.mark.parametrize("run", BOUNDED, ids=lambda run: run.name)
def test_upstreams_cases_pass(run: Run) -> None:
    outcome = execute(run, timeout_seconds=600)
    assert outcome.exit_status == 0, outcome.tail
    assert outcome.failed == ()
    # Whatever ggml's CPU backend computes, so do we.
    assert outcome.refused == ()
    assert outcome.passed == outcome.total > 10
    assert outcome.computed_by_pool > 10
