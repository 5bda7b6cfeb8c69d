"""The soak's judgement of an answer: only at a near tie may it part from the one given alone."""

from __future__ import annotations

import pytest

from tests.soak.answers import NEAR_TIE_NATS, Likeness, SoloAnswer, SoloToken

ANSWER = SoloAnswer(
    "prompt",
    4,
    (
        SoloToken("It", "She", 2.0),
        SoloToken(" was", " is", NEAR_TIE_NATS),
        SoloToken(" the", " a", NEAR_TIE_NATS + 0.01),
        SoloToken(" end", " day", 3.0),
    ),
)


@pytest.mark.parametrize(
    ("text", "likeness"),
    [
        ("It was the end", Likeness.SAME),
        ("It is whatever follows", Likeness.NEAR_TIE),
        ("It had been", Likeness.WRONG),
        ("It was a day", Likeness.WRONG),
        ("She was the end", Likeness.WRONG),
        ("It was the", Likeness.WRONG),
        ("It was the end of it", Likeness.WRONG),
        ("It", Likeness.WRONG),
        ("", Likeness.WRONG),
        ("Itwas the end", Likeness.WRONG),
    ],
)
def test_an_answer_may_part_from_the_one_given_alone_at_a_near_tie_only(
    text: str, likeness: Likeness
) -> None:
    assert ANSWER.compare(text)[0] is likeness


def test_the_gap_where_it_parts_is_told() -> None:
    assert ANSWER.compare("It is so")[1] == NEAR_TIE_NATS
    assert ANSWER.compare("She")[1] == 2.0
