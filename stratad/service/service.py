"""What the daemon is doing, as everybody asks for it: HTTP answers, metrics, stratactl, the watchdog.

Start-up moves it through its states; the server reads it. It exists before there is an engine, so that
`/health` can say "loading" from the first moment on. All methods are safe from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner import Reason
from stratad.chat.chat import Chat
from stratad.engine.engine import Engine, Ticket
from stratad.engine.generation import (
    Deliver,
    EngineFailure,
    GenerationRequest,
    InvalidRequest,
    NotAccepting,
    PromptTooLong,
    QueueFull,
    RequestError,
)
from stratad.metrics.registry import Sample
from stratad.runner.protocol import ModelRunner
from stratad.runner.verify import PlacementCheck, Verdict, check_placement
from stratad.service.document import (
    check_document,
    decode_document,
    expert_share_document,
    pool_document,
    reason_document,
)
from stratad.service.samples import (
    check_samples,
    counter_samples,
    engine_samples,
    reason_samples,
    refusal_samples,
    state_samples,
)
from stratad.service.status_schema import (
    MachineDocument,
    PlannedSliceDocument,
    PlanSummaryDocument,
    StatusDocument,
)

_REFUSALS = (EngineFailure, InvalidRequest, NotAccepting, PromptTooLong, QueueFull)


class ServiceState(StrEnum):
    """Where the daemon is in its life. DEGRADED serves, with pages or threads not as planned."""

    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The plan in force, as far as the service shows it; `document` is the whole plan as JSON values.

    `machine` is the machine that it was made for, with what each CPU does by it.
    """

    policy: str
    fingerprint: str
    reasons: tuple[Reason, ...] = ()
    document: Mapping[str, object] = field(default_factory=dict)
    confidence: str = ""
    arena_scope: str = ""
    slices: tuple[PlannedSliceDocument, ...] = ()
    machine: MachineDocument | None = None
    worker_count: int = 0

    def as_document(self) -> PlanSummaryDocument:
        """The plan in short."""
        return PlanSummaryDocument(
            policy=self.policy,
            fingerprint=self.fingerprint,
            confidence=self.confidence,
            worker_count=self.worker_count,
            slices=list(self.slices),
        )


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Settings the service needs; see `stratad.config`. The last two are only shown."""

    limit_ratio: float
    placement_sample_pages: int
    stall_seconds: float
    placement_check_seconds: float = 0.0
    max_queue: int = 0


@dataclass(frozen=True, slots=True)
class ServingParts:
    """Everything that a loaded model serves with."""

    engine: Engine
    runner: ModelRunner
    chat: Chat


class NotServing(Exception):
    """Something was asked of a daemon that only a serving one can do."""


class Service:
    """The daemon's state, and the way to the engine once there is one."""

    def __init__(self, model_name: str, version: str, limits: ServiceLimits) -> None:
        self.model_name = model_name
        self.version = version
        self.created_seconds = int(time.time())
        self._start_seconds = time.monotonic()
        self._limits = limits
        self._lock = threading.Lock()
        self._state = ServiceState.LOADING
        self._stage = "starting"
        self._fraction = 0.0
        self._plan: PlanSummary | None = None
        self._findings: dict[str, Reason] = {}
        self._degrading: set[str] = set()
        self._is_stopping = False
        self._parts: ServingParts | None = None
        self._check: PlacementCheck | None = None
        self._check_seconds = 0.0
        # From 0 on: Prometheus sees no increase in a series that begins with its first refusal.
        self._refused = {kind.code: 0 for kind in _REFUSALS}

    # --- Start-up and shutdown tell ---------------------------------------------------------------

    def loading(self, stage: str, fraction: float) -> None:
        """Loading has come this far."""
        with self._lock:
            self._stage, self._fraction = stage, fraction

    def planned(self, plan: PlanSummary) -> None:
        """The plan that is carried out from now on."""
        with self._lock:
            self._plan = plan

    def found(self, reason: Reason, *, degrades: bool = False) -> None:
        """Something was found that the plan did not say; one for each code is kept, the last.

        With `degrades`, a serving daemon is degraded until the finding is withdrawn.
        """
        with self._lock:
            self._findings[reason.code] = reason
            if degrades:
                self._degrading.add(reason.code)
            self._settle_state()

    def withdraw(self, code: str) -> None:
        """The finding of this code does not hold any more; does nothing when there is none."""
        with self._lock:
            self._findings.pop(code, None)
            self._degrading.discard(code)
            self._settle_state()

    def limited(self, limits: ServiceLimits) -> None:
        """These limits count from now on."""
        with self._lock:
            self._limits = limits

    def checked(self, check: PlacementCheck) -> None:
        """Pages were sampled; below the limit a serving daemon is degraded, and ready again above it."""
        with self._lock:
            self._check, self._check_seconds = check, time.monotonic()
            self._settle_state()

    def serving(self, parts: ServingParts) -> None:
        """The model is loaded, checked and answers."""
        with self._lock:
            self._parts = parts
            self._state = ServiceState.READY
            self._settle_state()

    def pause(self) -> None:
        """New requests are refused until `resume`. May be repeated.

        Raises:
            NotServing: The daemon does not serve, so there is nothing to pause.
        """
        with self._lock:
            if self._parts is None or self._is_stopping:
                raise NotServing("it is starting or stopping")
            self._state = ServiceState.DRAINING
            self._parts.engine.stop_accepting()

    def resume(self) -> None:
        """Requests are taken again after `pause`; does nothing when there was none.

        Raises:
            NotServing: The daemon is stopping for good, or has not served yet.
        """
        with self._lock:
            if self._parts is None or self._is_stopping:
                raise NotServing("it is starting or stopping")
            if self._state is ServiceState.DRAINING:
                self._parts.engine.start_accepting()
                self._state = ServiceState.READY
                self._settle_state()

    def draining(self) -> None:
        """New requests are refused from now on, for good."""
        with self._lock:
            self._state = ServiceState.DRAINING
            self._is_stopping = True
            parts = self._parts
        if parts is not None:
            parts.engine.stop_accepting()

    def replacing(self) -> None:
        """What served has failed and something else is loaded in its place."""
        with self._lock:
            self._parts = None
            self._check = None
            self._state, self._stage, self._fraction = ServiceState.LOADING, "starting anew", 0.0

    def stopped(self) -> None:
        """The engine and the runner are about to be closed: nothing may ask them any more."""
        with self._lock:
            self._parts = None

    # --- The server, metrics and the watchdog ask -------------------------------------------------

    @property
    def state(self) -> ServiceState:
        """The state; FAILED as soon as the engine says so."""
        with self._lock:
            parts, state = self._parts, self._state
        if parts is not None and parts.engine.status().failure is not None:
            return ServiceState.FAILED
        return state

    def submit(self, request: GenerationRequest, deliver: Deliver) -> Ticket:
        """Hands the request to the engine; raises as `Engine.submit`, and NotAccepting while loading."""
        try:
            return self._serving_parts().engine.submit(request, deliver)
        except RequestError as error:
            with self._lock:
                self._refused[error.code] = self._refused.get(error.code, 0) + 1
            raise

    @property
    def chat(self) -> Chat:
        """Chats with the model. Raises NotAccepting while loading."""
        return self._serving_parts().chat

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The model's tokens of `text`. Raises NotAccepting while loading."""
        vocabulary = self._serving_parts().runner.vocabulary
        return vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)

    def sample_placement(self) -> PlacementCheck:
        """Asks the kernel now where the pages lie, and remembers the answer. Takes milliseconds."""
        report = self._serving_parts().runner.placement(self._limits.placement_sample_pages)
        check = check_placement(report, self._limits.limit_ratio)
        self.checked(check)
        return check

    def repair_placement(self) -> int:
        """Moves pages that lie elsewhere than planned back, and gives how many it moved."""
        return self._serving_parts().runner.repair_placement()

    def has_pinned_pages(self) -> bool:
        """Whether a GPU's runtime has pages of the arena registered: those are never moved."""
        return self._serving_parts().runner.counters().pinned_bytes > 0

    def is_progressing(self) -> bool:
        """False when a request has made no step for too long, or the engine has failed: restart it then."""
        with self._lock:
            parts = self._parts
        if parts is None:
            return True
        return (
            parts.engine.stalled_seconds() < self._limits.stall_seconds
            and parts.engine.status().failure is None
        )

    def document(self) -> StatusDocument:
        """Everything `stratactl status` and the status page show."""
        state = self.state
        with self._lock:
            plan, check, parts = self._plan, self._check, self._parts
            now_seconds = time.monotonic()
            age_seconds = now_seconds - self._check_seconds
            stage, fraction = self._stage, self._fraction
            reasons = [*(plan.reasons if plan else ()), *self._findings.values()]
        counters = parts.runner.counters() if parts else None
        return StatusDocument(
            state=state.value,
            stage=stage,
            loaded_ratio=fraction,
            uptime_seconds=now_seconds - self._start_seconds,
            model=self.model_name,
            version=self.version,
            plan=plan.as_document() if plan else None,
            machine=plan.machine if plan else None,
            reasons=[reason_document(reason) for reason in reasons],
            placement=check_document(check, age_seconds) if check else None,
            decode=decode_document(parts.engine.status(), parts.runner) if parts else None,
            pool=pool_document(counters) if counters else None,
            experts=expert_share_document(counters) if counters else None,
        )

    def plan_document(self) -> Mapping[str, object] | None:
        """The whole plan as JSON values; None before there is one."""
        with self._lock:
            return self._plan.document if self._plan else None

    def samples(self) -> Iterator[Sample]:
        """Every metric that is read at the moment of a scrape.

        No lock is held while the engine and the native side are asked: a scrape that is slow there delays nobody.
        """
        yield Sample("stratad_build_info", 1, (self.version, "llama.cpp"))
        yield from state_samples(self.state.value)
        with self._lock:
            plan, check, parts = self._plan, self._check, self._parts
            age_seconds = time.monotonic() - self._check_seconds
            reasons = [*(plan.reasons if plan else ()), *self._findings.values()]
            fraction, limits, refused = self._fraction, self._limits, dict(self._refused)
        yield Sample("stratad_loaded_ratio", fraction if parts is None else 1.0)
        yield Sample("stratad_queue_capacity", limits.max_queue, (self.model_name,))
        yield Sample("stratad_placement_check_interval_seconds", limits.placement_check_seconds)
        if plan is not None:
            labels = (plan.policy, plan.fingerprint, plan.confidence, plan.arena_scope)
            yield Sample("stratad_plan_info", 1, labels)
        yield from reason_samples(reasons)
        yield from refusal_samples(refused, self.model_name)
        if check is not None:
            yield from check_samples(check, age_seconds)
        if parts is not None:
            yield Sample("stratad_stalled_seconds", parts.engine.stalled_seconds())
            status, context_tokens = parts.engine.status(), parts.runner.context_tokens
            yield from engine_samples(status, context_tokens, self.model_name)
            yield from counter_samples(parts.runner.counters())

    def _settle_state(self) -> None:
        """A serving daemon is ready or degraded by what is known now. The lock is held."""
        if self._state in (ServiceState.READY, ServiceState.DEGRADED):
            is_misplaced = self._check is not None and self._check.verdict is Verdict.BELOW_LIMIT
            is_degraded = is_misplaced or bool(self._degrading)
            self._state = ServiceState.DEGRADED if is_degraded else ServiceState.READY

    def _serving_parts(self) -> ServingParts:
        with self._lock:
            if self._parts is None:
                raise NotAccepting(f"the model is not served now: {self._state.value}, {self._stage}")
            return self._parts
