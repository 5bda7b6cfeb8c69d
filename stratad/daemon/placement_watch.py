"""Checks page placement again and again while the daemon serves, and tells when it changes."""

from __future__ import annotations

from collections.abc import Callable

from planner import Effect, Reason
from stratad import journal
from stratad.runner.verify import PlacementCheck, Verdict
from stratad.service.service import Service
from stratad.watch import Watch

BELOW_LIMIT_CODE = "placement-below-limit"
UNVERIFIABLE_CODE = "placement-unverifiable"
REPAIRED_CODE = "placement-repaired"


class PlacementWatch(Watch):
    """A thread that samples placement every `pause_seconds`, 0 never, and moves pages back that have drifted."""

    def __init__(self, service: Service, pause_seconds: float, *, is_repairing: bool) -> None:
        super().__init__("placement", pause_seconds)
        self._service = service
        self._is_repairing = is_repairing
        self._last = Verdict.MET
        # Where a repair moved nothing, the next one need not be tried until something has changed.
        self._hopeless_ratio: float | None = None

    def look(self) -> None:
        """Samples once, repairs what can be, and tells the service, and the log when the verdict has changed."""
        try:
            check = self._service.sample_placement()
            self._tell(check)
            if self._is_repairing and not check.is_met and check.worst_ratio != self._hopeless_ratio:
                moved_pages = repair(self._service.repair_placement)
                tell_repair(self._service, moved_pages)
                check = self._service.sample_placement()
                self._hopeless_ratio = check.worst_ratio if moved_pages == 0 else None
                self._tell(check)
        except (OSError, RuntimeError) as error:
            # The next check may work; how old the last one is, a metric tells.
            journal.report_error("placement", "the check failed", reason=str(error))

    def _tell(self, check: PlacementCheck) -> None:
        note_placement(self._service, check)
        if check.verdict is not self._last:
            log_placement(check)
        self._last = check.verdict


def repair(move_pages: Callable[[], int]) -> int:
    """Pages that `move_pages` brought back; 0 where the kernel refuses, which the log tells."""
    try:
        return move_pages()
    except OSError as error:
        journal.report_error("placement", "pages cannot be moved", reason=str(error))
        return 0


def tell_repair(service: Service, moved_pages: int) -> None:
    """Shows that pages were moved to where they belong; nothing when none were."""
    if moved_pages == 0:
        return
    message = f"{moved_pages} pages lay elsewhere than planned and were moved to their slice's node"
    service.found(Reason(REPAIRED_CODE, Effect.INFORMS, message, {"repaired_pages": moved_pages}))
    journal.inform("placement", message, moved_pages=moved_pages, code=REPAIRED_CODE)


def note_placement(service: Service, check: PlacementCheck) -> None:
    """Shows a check that went badly as a reason, and withdraws that of an earlier one."""
    for code in (BELOW_LIMIT_CODE, UNVERIFIABLE_CODE):
        service.withdraw(code)
    reason = placement_reason(check)
    if reason is not None:
        service.found(reason)


def placement_reason(check: PlacementCheck) -> Reason | None:
    """What a check found, when it is worth a warning."""
    if check.verdict is Verdict.BELOW_LIMIT:
        return Reason(
            BELOW_LIMIT_CODE,
            Effect.WARNS,
            f"slice {check.worst_slice} has {check.worst_ratio:.4f} of its pages on its nodes, "
            f"the limit is {check.limit_ratio:g}",
            {"slice": check.worst_slice, "local_ratio": check.worst_ratio, "limit_ratio": check.limit_ratio},
            "free memory on that node and restart the daemon; `stratactl verify` shows every slice",
        )
    if check.verdict is Verdict.UNVERIFIABLE:
        return Reason(
            UNVERIFIABLE_CODE,
            Effect.WARNS,
            "the kernel does not tell where the arena's pages lie",
            remedy="allow move_pages to the service (seccomp filters and containers often refuse it)",
        )
    return None


def log_placement(check: PlacementCheck) -> None:
    """One line for the check's verdict, as a warning when it is a bad one."""
    reason = placement_reason(check)
    write = journal.inform if reason is None else journal.warn
    write(
        "placement",
        verdict=check.verdict.value,
        limit_ratio=check.limit_ratio,
        worst_slice=check.worst_slice,
        worst_ratio=check.worst_ratio,
        code=reason.code if reason else None,
    )
