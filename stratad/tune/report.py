"""A tuning for people: every arm's medians and ranges, what was compared, and what follows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from planner import Objective
from stratad.tune.judge import EQUAL_SHARE, Decision, Outcome, Record
from stratad.tune.statistics import CONFIDENCE, RatioInterval

# A rate of fewer steps than this rests on less than a second even of a slow model.
FEW_STEPS = 32


def report_lines(outcome: Outcome, reference: str, objective: Objective) -> list[str]:
    """Give the report, without where it was written."""
    lines = [_arm_line(record, is_reference=record.arm == reference) for record in outcome.records]
    lines += [
        f"compared  {outcome.leader} is {_interval(interval)} as fast as {arm} for {objective}"
        for arm, interval in outcome.comparisons.items()
    ]
    if not outcome.answers_agree:
        lines.append("note      answers differ between arms, so they did not compute exactly the same")
    reused = sum(trial.cached_tokens for record in outcome.records for trial in record.trials)
    if reused:
        lines.append(f"note      {reused} prompt tokens were reused, not computed: prompts begin alike")
    steps = [
        trial.decode_steps for record in outcome.records for trial in record.trials if trial.decode_steps
    ]
    if steps and min(steps) < FEW_STEPS:
        lines.append(
            f"note      a start decoded {min(steps)} steps only, because answers ended: ask for more with other prompts"
        )
    lines.append(f"stopped   {outcome.stopped_because}, after {outcome.block_count} whole blocks")
    lines.append(f"decision  {decision_text(outcome, reference)}")
    return lines


def decision_text(outcome: Outcome, reference: str) -> str:
    """Give the decision in one sentence."""
    if outcome.decision is Decision.NOTHING or outcome.second is None:
        return "nothing was compared"
    against = f"{outcome.second}{', the default' if outcome.second == reference else ''}"
    if outcome.decision is Decision.WINNER:
        return f"{outcome.leader} is faster than {against}: `stratactl plan` follows it from now on"
    if outcome.decision is Decision.TIE:
        return f"{outcome.leader} and {against} are equal within {EQUAL_SHARE:.0%}: the default stays"
    return f"{outcome.leader} and {against} are not told apart yet: the default stays; more --rounds may settle it"


def failures(records: Sequence[Record]) -> list[str]:
    """Give a line for every arm that failed."""
    return [f"{record.arm}: {record.failure}" for record in records if record.failure is not None]


def _arm_line(record: Record, *, is_reference: bool) -> str:
    name = f"arm       {record.arm}{' (the default)' if is_reference else ''}"
    trials = record.trials
    failed = "" if record.failure is None else f"failed: {record.failure}"
    if not trials:
        return f"{name}: {failed or 'not measured'}"
    decode = _median_and_range([trial.decode_tokens_per_second for trial in trials])
    prompt = _median_and_range([trial.prompt_tokens_per_second for trial in trials])
    ratios = [trial.local_ratio for trial in trials if trial.local_ratio is not None]
    placed = f", {min(ratios):.1%} of pages in place" if ratios else ""
    starts = f"{len(trials)} starts"
    return f"{name}: decode {decode} tok/s, prompt {prompt} tok/s, {starts}{placed}{'; ' if failed else ''}{failed}"


def _median_and_range(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"


def _interval(interval: RatioInterval) -> str:
    if interval.block_count < 2:
        return f"{interval.ratio:.3f} times (one block: no interval)"
    return (
        f"{interval.ratio:.3f} times ({interval.low:.3f} to {interval.high:.3f} with {CONFIDENCE:.0%} confidence, "
        f"{interval.block_count} blocks)"
    )
