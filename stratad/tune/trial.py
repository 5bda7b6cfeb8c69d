"""One fresh start of one arm, and what can start it: the real daemon or a test's synthetic engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from planner import Objective


@dataclass(frozen=True, slots=True)
class Trial:
    """What one fresh start reached. Rates are tokens a second over all prompts of the trial.

    `local_ratio` is the lowest of all placed slices, None where nothing is placed. `answer_digest` names the tokens
    that came out: arms that computed the same have the same. `cached_tokens` were not computed but reused.
    `decode_steps` is how many steps the decode rate rests on.
    """

    decode_tokens_per_second: float
    prompt_tokens_per_second: float
    local_ratio: float | None = None
    answer_digest: str = ""
    cached_tokens: int = 0
    decode_steps: int | None = None

    def speed(self, objective: Objective) -> float:
        """What the objective favours, in tokens a second; balanced is the geometric mean of both."""
        if objective is Objective.DECODE:
            return self.decode_tokens_per_second
        if objective is Objective.PROMPT:
            return self.prompt_tokens_per_second
        return math.sqrt(self.decode_tokens_per_second * self.prompt_tokens_per_second)


class ArmFailed(Exception):
    """An arm did not start, or broke while it answered. The text says how; the machine is clean again."""


class TrialEngine(Protocol):
    """Starts an arm afresh, measures it and ends it."""

    def try_arm(self, arm: str) -> Trial:
        """One fresh start of the arm of this name.

        Raises:
            ArmFailed: It did not start or did not answer. Nothing of it is left.
        """
