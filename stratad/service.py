"""What the daemon is doing, as everybody asks for it: HTTP answers, metrics, stratactl, the watchdog.

Start-up moves it through its states; the server reads it. It exists before there is an engine, so that
`/health` can say "loading" from the first moment on. All methods are safe from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stratad.chat_template import ChatMessage, ChatTemplate
from stratad.engine import Engine, Ticket
from stratad.expert_share import expert_share_document
from stratad.generation import Deliver, GenerationRequest, NotAccepting
from stratad.metrics import Sample
from stratad.runner import ModelRunner
from stratad.service_samples import check_samples, counter_samples, engine_samples, state_samples
from stratad.verify import PlacementCheck, Verdict, check_placement, placement_document


class ServiceState(StrEnum):
    """Where the daemon is in its life. DEGRADED serves, with pages or threads not as planned."""

    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Notice:
    """A finding to show: one of the plan's reasons, or one made after it (placement check, template)."""

    code: str
    effect: str
    message: str
    remedy: str | None = None

    def as_document(self) -> dict[str, object]:
        """The notice as JSON values."""
        return {"code": self.code, "effect": self.effect, "message": self.message, "remedy": self.remedy}


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The plan in force, as far as the service shows it; `document` is the whole plan as JSON values."""

    policy: str
    fingerprint: str
    reasons: tuple[Notice, ...] = ()
    document: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Settings the service needs; see `stratad.config`."""

    limit_ratio: float
    placement_sample_pages: int
    stall_seconds: float


@dataclass(frozen=True, slots=True)
class ServingParts:
    """Everything that a loaded model serves with."""

    engine: Engine
    runner: ModelRunner
    chat_template: ChatTemplate


class Service:
    """The daemon's state, and the way to the engine once there is one."""

    def __init__(self, model_name: str, version: str, limits: ServiceLimits) -> None:
        self.model_name = model_name
        self.version = version
        self.created_seconds = int(time.time())
        self._limits = limits
        self._lock = threading.Lock()
        self._state = ServiceState.LOADING
        self._stage = "starting"
        self._fraction = 0.0
        self._plan: PlanSummary | None = None
        self._notices: dict[str, Notice] = {}
        self._degrading: set[str] = set()
        self._parts: ServingParts | None = None
        self._check: PlacementCheck | None = None
        self._check_seconds = 0.0

    # --- Start-up and shutdown tell ---------------------------------------------------------------

    def loading(self, stage: str, fraction: float) -> None:
        """Loading has come this far."""
        with self._lock:
            self._stage, self._fraction = stage, fraction

    def planned(self, plan: PlanSummary) -> None:
        """The plan that is carried out from now on."""
        with self._lock:
            self._plan = plan

    def notice(self, notice: Notice, *, degrades: bool = False) -> None:
        """Something was found that the plan did not say; one for each code is kept, the last.

        With `degrades`, a serving daemon is degraded until the notice is withdrawn.
        """
        with self._lock:
            self._notices[notice.code] = notice
            if degrades:
                self._degrading.add(notice.code)
            self._settle_state()

    def withdraw(self, code: str) -> None:
        """The notice of this code does not hold any more; does nothing when there is none."""
        with self._lock:
            self._notices.pop(code, None)
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

    def draining(self) -> None:
        """New requests are refused from now on."""
        with self._lock:
            self._state = ServiceState.DRAINING
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
        return self._serving_parts().engine.submit(request, deliver)

    def render_chat(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt for these messages. Raises ChatTemplateError, and NotAccepting while loading."""
        return self._serving_parts().chat_template.render(messages)

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

    def document(self) -> dict[str, object]:
        """Everything `stratactl status` and the status page show, as JSON values."""
        state = self.state
        with self._lock:
            plan, check, parts = self._plan, self._check, self._parts
            age_seconds = time.monotonic() - self._check_seconds
            stage, fraction = self._stage, self._fraction
            notices = [*(plan.reasons if plan else ()), *self._notices.values()]
        return {
            "state": state.value,
            "stage": stage,
            "loaded_ratio": fraction,
            "model": self.model_name,
            "version": self.version,
            "plan": _plan_document(plan) if plan else None,
            "reasons": [notice.as_document() for notice in notices],
            "placement": {**placement_document(check), "age_seconds": age_seconds} if check else None,
            "decode": _decode_document(parts.engine) if parts else None,
            "experts": expert_share_document(parts.runner.counters()) if parts else None,
        }

    def plan_document(self) -> Mapping[str, object] | None:
        """The whole plan as JSON values; None before there is one."""
        with self._lock:
            return self._plan.document if self._plan else None

    def samples(self) -> Iterator[Sample]:
        """Every metric that is read at the moment of a scrape."""
        yield Sample("stratad_build_info", 1, (self.version, "llama.cpp"))
        yield from state_samples(self.state.value)
        with self._lock:
            plan, check, parts = self._plan, self._check, self._parts
            age_seconds = time.monotonic() - self._check_seconds
            notices = [*(plan.reasons if plan else ()), *self._notices.values()]
        if plan is not None:
            yield Sample("stratad_plan_info", 1, (plan.policy, plan.fingerprint))
        for code, effect in sorted({(notice.code, notice.effect) for notice in notices}):
            yield Sample("stratad_plan_reason", 1, (code, effect))
        if check is not None:
            yield from check_samples(check, age_seconds)
        if parts is not None:
            yield from engine_samples(parts.engine.status(), self.model_name)
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


def _plan_document(plan: PlanSummary) -> dict[str, object]:
    layout = plan.document.get("layout")
    workers = layout.get("workers", ()) if isinstance(layout, Mapping) else ()
    return {"policy": plan.policy, "fingerprint": plan.fingerprint, "workers": len(workers)}


def _decode_document(engine: Engine) -> dict[str, object]:
    status = engine.status()
    steps_per_second = status.decode_steps / status.decode_seconds if status.decode_seconds else None
    return {
        "requests_running": status.running,
        "requests_waiting": status.waiting,
        "slots": status.slots,
        "held_tokens": status.held_tokens,
        "prompt_tokens_cached": status.cached_tokens,
        "generation_tokens": status.generation_tokens,
        "prompt_tokens": status.prompt_tokens,
        "decode_steps": status.decode_steps,
        "decode_steps_per_second": steps_per_second,
        "last_timings": status.last_timings.as_document() if status.last_timings else None,
    }
