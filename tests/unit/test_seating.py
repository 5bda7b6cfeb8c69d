"""Whether copying a prompt's memory is worth it: both sides of the limit, and before anything was measured."""

from __future__ import annotations

from stratad.engine.seating import MeasuredRates


def test_copying_pays_until_it_takes_as_long_as_computing() -> None:
    rates = MeasuredRates()
    rates.note_computed(100, 1.0)
    rates.note_computed(100, 3.0)
    rates.note_copied(1000, 0.5)
    rates.note_copied(1000, 1.5)
    # 20 ms a token, 1 ms a byte.
    assert rates.pays(10, 199)
    assert not rates.pays(10, 200)


def test_nothing_pays_for_no_token() -> None:
    assert not MeasuredRates().pays(0, 1)
    assert not MeasuredRates().pays(-3, 1)


def test_before_a_prompt_was_computed_copying_pays() -> None:
    assert MeasuredRates().pays(1, 1 << 40)


def test_before_a_copy_was_measured_a_gigabyte_a_second_is_assumed() -> None:
    rates = MeasuredRates()
    rates.note_computed(1, 0.001)
    assert rates.pays(1, 999_999)
    assert not rates.pays(1, 1_000_001)
