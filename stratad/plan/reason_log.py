"""Plans and reasons in the log: the planner's own lines, with what a program searches for in fields."""

from __future__ import annotations

from planner import Effect, Plan, Reason
from planner.explain import log_lines, reason_log_line
from stratad import journal


def log_plan(plan: Plan) -> None:
    """One line for the plan, and one for each of its reasons."""
    head, *_ = log_lines(plan)
    journal.inform_line(
        "plan",
        head,
        policy=plan.policy.value,
        fingerprint=plan.fingerprint,
        confidence=plan.confidence.value,
    )
    for reason in plan.reasons:
        inform_of(reason)


def inform_of(reason: Reason) -> None:
    """One line for a reason that belongs to a plan, whatever its effect."""
    journal.inform_line(
        "plan",
        reason_log_line(reason),
        code=reason.code,
        effect=reason.effect.value,
        policy=reason.policy.value if reason.policy else None,
    )


def warn_of(reason: Reason) -> None:
    """One line, as a warning, for a reason that says what is not as planned."""
    journal.warn_line(
        "plan",
        reason_log_line(reason),
        code=reason.code,
        effect=reason.effect.value,
        policy=reason.policy.value if reason.policy else None,
    )


def tell(reason: Reason) -> None:
    """One line for a finding made beside the plan: a warning where it warns."""
    (warn_of if reason.effect is Effect.WARNS else inform_of)(reason)
