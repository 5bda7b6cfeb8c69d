"""Arms: the ways to run that `stratactl tune` compares, as the user writes them and as the planner builds them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner import Plan, PlanRefused, PlanRequest, Policy, Topology, make_plan
from planner.cpulist import format_id_list, parse_id_list
from stratad.errors import ConfigurationError

_SPELLING = re.compile(
    r"(?P<policy>[a-z-]+)(?:/(?P<slices>\d{1,3}))?(?:@(?P<nodes>\d[\d+-]*))?(?::(?P<workers>\d{1,5}))?"
)
SPELLING_HELP = "POLICY[/SLICES][@NODES][:WORKERS], as split, split:16, single-socket@1 or off:8"


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """A policy, and where somebody says so its nodes, slices and workers; None leaves that to the planner."""

    policy: Policy
    node_ids: tuple[int, ...] | None = None
    slice_count: int | None = None
    worker_count: int | None = None

    def __str__(self) -> str:
        slices = "" if self.slice_count is None else f"/{self.slice_count}"
        nodes = "" if self.node_ids is None else f"@{format_id_list(self.node_ids).replace(',', '+')}"
        workers = "" if self.worker_count is None else f":{self.worker_count}"
        return f"{self.policy}{slices}{nodes}{workers}"


@dataclass(frozen=True, slots=True)
class PlannedArm:
    """An arm with the plan that its starts carry out."""

    arm: Arm
    plan: Plan

    @property
    def name(self) -> str:
        """The arm as the user writes it."""
        return str(self.arm)


def parse_arms(text: str) -> tuple[Arm, ...]:
    """Give the arms of `--arms`, separated by commas.

    Raises:
        ConfigurationError: One of them is no arm, or stands there twice.
    """
    arms = tuple(_parse_arm(word.strip()) for word in text.split(",") if word.strip())
    if len(set(arms)) < len(arms) or not arms:
        raise ConfigurationError(
            tried=f"reading the arms {text!r}",
            because="an arm stands there twice" if arms else "there is none",
            remedy=f"write each once, separated by commas: {SPELLING_HELP}",
        )
    return arms


def default_arms(topology: Topology, request: PlanRequest, chosen: Plan) -> tuple[PlannedArm, ...]:
    """Give every candidate that is feasible; where that is one, it and half of its workers.

    Args:
        topology: The machine.
        request: The model, with nothing asked for.
        chosen: The planner's own choice. Its candidates are the arms, its own first.
    """
    candidates = sorted(chosen.candidates, key=lambda candidate: not candidate.is_chosen)
    arms = [Arm(item.policy, item.node_ids, item.slice_count) for item in candidates]
    planned = [
        arm for arm in (plan_arm(topology, request, arm) for arm in arms) if isinstance(arm, PlannedArm)
    ]
    if len(planned) != 1:
        return tuple(planned)
    worker_count = len(planned[0].plan.layout.workers)
    if worker_count < 2:
        return tuple(planned)
    half = plan_arm(topology, request, replace(planned[0].arm, worker_count=worker_count // 2))
    return (*planned, half) if isinstance(half, PlannedArm) else tuple(planned)


def plan_arm(topology: Topology, request: PlanRequest, arm: Arm) -> PlannedArm | PlanRefused:
    """Give the arm with its plan, or the planner's refusal with its reasons."""
    asked = replace(
        request,
        requested_policy=arm.policy,
        requested_node_ids=arm.node_ids,
        requested_slice_count=arm.slice_count,
        requested_worker_count=arm.worker_count,
    )
    try:
        return PlannedArm(arm, make_plan(topology, asked))
    except PlanRefused as refusal:
        return refusal


def require_distinct(arms: Sequence[PlannedArm]) -> None:
    """Raises ConfigurationError when two arms come to the same plan here: they would be compared with themselves."""
    for index, first in enumerate(arms):
        for second in arms[index + 1 :]:
            if first.plan.decides_as(second.plan):
                raise ConfigurationError(
                    tried=f"planning the arms {first.name} and {second.name}",
                    because="both come to the same plan on this machine",
                    values={"policy": first.plan.policy.value, "workers": len(first.plan.layout.workers)},
                    remedy="leave one of them out",
                )


def reference_of(arms: Sequence[PlannedArm], chosen: Plan) -> PlannedArm:
    """Give the arm that runs what the planner would choose; the first when none does."""
    return next((arm for arm in arms if arm.plan.decides_as(chosen)), arms[0])


def _parse_arm(word: str) -> Arm:
    match = _SPELLING.fullmatch(word)
    try:
        if match is None:
            raise ValueError("it is not spelled as an arm")
        return Arm(
            Policy(match["policy"]),
            _node_ids(match["nodes"]),
            _count(match["slices"]),
            _count(match["workers"]),
        )
    except ValueError as error:
        raise ConfigurationError(
            tried=f"reading the arm {word!r}",
            because=str(error),
            remedy=f"write {SPELLING_HELP}; policies are {', '.join(policy.value for policy in Policy)}",
        ) from error


def _node_ids(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    node_ids = parse_id_list(text.replace("+", ","))
    if not node_ids:
        raise ValueError(f"{text!r} names no nodes")
    return node_ids


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if int(text) < 1:
        raise ValueError("a count is at least 1")
    return int(text)
