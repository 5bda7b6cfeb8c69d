"""From a plan to a loaded model whose pages lie where the plan says, with progress shown and stop signals obeyed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner import Effect, Plan, Policy, Reason, Topology, plan_to_dict
from stratad import journal
from stratad.config import Configuration
from stratad.daemon.placement_watch import log_placement, note_placement, repair, tell_repair
from stratad.daemon.starting_plan import DEGRADING_CODES, decide_plan
from stratad.daemon.stop_signals import StopSignals
from stratad.errors import LoadCancelled, PlacementError
from stratad.gguf.model import ModelFacts
from stratad.gpu.expert_profile import read_profile
from stratad.gpu.runtime import GpuFindings
from stratad.native.apply import open_runner
from stratad.native.batch_limits import PoolLimits
from stratad.native.runner import NativeRunner
from stratad.plan.reason_log import tell
from stratad.runner.protocol import ModelRunner
from stratad.runner.verify import PlacementCheck, check_placement
from stratad.service.machine_view import plan_summary
from stratad.service.service import Service
from stratad.state.runtime_directory import publish_plan
from stratad.systemd.notify import Notifier

# Native code reports progress for every tensor; nobody reads more than a few lines a second.
_PROGRESS_PAUSE_SECONDS = 0.5

# And a log that is read later wants fewer.
_LOG_PAUSE_SECONDS = 10.0


class StoppedWhileLoading(Exception):
    """A stop signal came before the daemon was ready; leaving early is what was asked for."""


@dataclass(slots=True)
class Loading:
    """Opens runners for plans, with progress shown everywhere and stop signals obeyed."""

    configuration: Configuration
    topology: Topology
    model: ModelFacts
    gpus: GpuFindings
    directory: Path
    service: Service
    notifier: Notifier
    stop: StopSignals
    profile_path: Path
    limits: PoolLimits
    is_first: bool = True
    _shown_seconds: float = 0.0
    _shown_stage: str = ""
    _shown_fraction: float = 0.0
    _told_seconds: float = 0.0

    def open(self, plan: Plan) -> NativeRunner:
        """Loads the model by `plan`. Raises StoppedWhileLoading when asked to stop meanwhile."""
        document = plan_to_dict(plan)
        publish_plan(self.directory, document)
        self.service.planned(plan_summary(plan, document, self.topology))
        try:
            profile, ignored = read_profile(self.profile_path, self.model) if self.gpus.gpus else ({}, None)
            self.tell(() if ignored is None else (ignored,))
            runner = open_runner(
                plan,
                self.model,
                self.configuration,
                self._progress,
                gpus=self.gpus.gpus,
                profile=profile,
                limits=self.limits,
            )
        except LoadCancelled:
            self._leave_if_asked()
            raise
        if self.stop.is_requested:
            runner.close()
        self._leave_if_asked()
        self.tell(runner.reasons)
        return runner

    def tell(self, reasons: Sequence[Reason]) -> None:
        """Logs what was found while the plan was carried out, and shows it."""
        for reason in reasons:
            tell(reason)
            self.service.found(reason, degrades=reason.code in DEGRADING_CODES)

    def plan_again(self, policy: Policy) -> Plan:
        """The plan with `policy` in place of the configured one."""
        placement = replace(self.configuration.placement, policy=policy.value)
        configuration = replace(self.configuration, placement=placement)
        return decide_plan(self.topology, self.model, configuration, self.gpus)

    def _progress(self, stage: str, fraction: float) -> bool:
        """Shows how far loading has come; False tells the native side to give up."""
        now_seconds = time.monotonic()
        is_new_stage = stage != self._shown_stage
        is_due = now_seconds - self._shown_seconds > _PROGRESS_PAUSE_SECONDS
        if is_new_stage or is_due or fraction >= 1.0 > self._shown_fraction:
            self._shown_seconds = now_seconds
            self._shown_stage, self._shown_fraction = stage, fraction
            self.service.loading(stage, fraction)
            extension_seconds = self.configuration.systemd.load_extension_seconds
            self.notifier.loading(f"{stage}, {fraction:.0%}", extension_seconds)
        if is_new_stage or now_seconds - self._told_seconds > _LOG_PAUSE_SECONDS:
            self._told_seconds = now_seconds
            journal.inform("loading", stage=stage, loaded_ratio=fraction)
        return not self.stop.is_requested

    def _leave_if_asked(self) -> None:
        if self.stop.is_requested:
            self.notifier.stopping("stopped while loading")
            journal.inform("stopping", "asked to stop while loading")
            raise StoppedWhileLoading


@contextlib.contextmanager
def loaded(loading: Loading, plan: Plan) -> Iterator[NativeRunner]:
    """The model in memory with its placement verified; closed at the end.

    Raises:
        PlacementError: Too few pages lie where the plan says, and no fallback is configured or helped.
    """
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(contextlib.closing(loading.open(plan)))
        check = _check(runner, loading)
        fallback = loading.configuration.placement.fallback
        if not check.is_met and fallback in (Policy.INTERLEAVE, Policy.SINGLE_SOCKET):
            stack.close()
            second_plan = _fallback_plan(loading, Policy(fallback), check)
            runner = stack.enter_context(contextlib.closing(loading.open(second_plan)))
            check = _check(runner, loading)
        if not check.is_met and fallback != "degraded":
            raise _placement_error(check)
        if check.is_met and loading.configuration.gpu.pin_memory:
            # Registered pages never move again, so only now, and not where a repair may still help.
            loading.tell(runner.pin_arenas())
        yield runner


def _check(runner: ModelRunner, loading: Loading) -> PlacementCheck:
    """Samples placement before anybody is served, repairs it where that helps, and shows what it found."""
    check = _sample(runner, loading)
    if check.is_met or not loading.configuration.placement.repair:
        return check
    tell_repair(loading.service, repair(runner.repair_placement))
    return _sample(runner, loading)


def _sample(runner: ModelRunner, loading: Loading) -> PlacementCheck:
    configuration = loading.configuration
    report = runner.placement(configuration.metrics.placement_sample_pages)
    check = check_placement(report, configuration.placement.limit_ratio)
    loading.service.checked(check)
    note_placement(loading.service, check)
    log_placement(check)
    return check


def _fallback_plan(loading: Loading, policy: Policy, check: PlacementCheck) -> Plan:
    message = f"placement was verified at {check.worst_ratio:.4f}; planned again with {policy.value}"
    loading.service.found(Reason("placement-fallback", Effect.WARNS, message))
    journal.warn("placement", message, code="placement-fallback")
    return loading.plan_again(policy)


def _placement_error(check: PlacementCheck) -> PlacementError:
    return PlacementError(
        tried="verifying where the arena's pages lie",
        because=f"too few pages of slice {check.worst_slice} lie on its nodes",
        values={"local_ratio": round(check.worst_ratio or 0.0, 4), "limit_ratio": check.limit_ratio},
        remedy="free memory on that node, or set placement.fallback to interleave, single-socket or degraded",
    )
