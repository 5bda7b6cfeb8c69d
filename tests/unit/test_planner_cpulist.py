from __future__ import annotations

import pytest

from planner.cpulist import LARGEST_ID, format_id_list, parse_id_list, parse_id_mask


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("7", (7,)),
        ("", ()),
        (" \n", ()),
        ("3,1,1-2", (1, 2, 3)),
        (f"{LARGEST_ID}", (LARGEST_ID,)),
    ],
)
def test_kernel_lists_become_sorted_ids(text: str, ids: tuple[int, ...]) -> None:
    assert parse_id_list(text) == ids


@pytest.mark.parametrize(
    "text", ["a", "3-1", "1-", "-1", "1--2", f"{LARGEST_ID + 1}", "0-99999999999999999999", "١"]
)
def test_text_that_is_no_list_is_unknown_and_not_empty(text: str) -> None:
    assert parse_id_list(text) is None


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("f", (0, 1, 2, 3)),
        ("1,00000000", (32,)),
        ("0000,00000000,00000001", (0,)),
        ("00000000", ()),
        ("ffffffffffffffff", tuple(range(64))),
    ],
)
def test_kernel_masks_become_sorted_ids(text: str, ids: tuple[int, ...]) -> None:
    assert parse_id_mask(text) == ids


@pytest.mark.parametrize("text", ["", "g", "-1", "1,123456789", ",".join(["0"] * 5000)])
def test_text_that_is_no_mask_is_unknown(text: str) -> None:
    assert parse_id_mask(text) is None


def test_ids_are_written_as_the_kernel_writes_them() -> None:
    assert format_id_list([8, 1, 0, 2, 2]) == "0-2,8"
    assert format_id_list([]) == ""
    assert format_id_list([4, 5]) == "4-5"
