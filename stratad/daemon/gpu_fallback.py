"""What the daemon does when a GPU fails: end for its supervisor, or go on with the CPUs alone."""

from __future__ import annotations

from planner import Effect, Reason
from stratad import journal
from stratad.config import DeviceFailure
from stratad.errors import DeviceError, render_error
from stratad.service.service import Service

FAILED_CODE = "gpu-failed"
# What was said about a GPU that takes part no more.
_OUTDATED_CODES = (
    "gpu-used",
    "gpu-cache",
    "gpu-cache-smaller",
    "gpu-cache-off",
    "gpu-prefill-off",
    "gpu-prefill-threshold",
    "arena-pinned",
    "arena-not-pinned",
    "arena-pinning-unsupported",
)


def device_error(failure: str) -> DeviceError:
    """A failed GPU as an operating error."""
    return DeviceError(
        tried="computing on the GPU",
        because=failure,
        remedy='look at the driver\'s messages (`dmesg`); gpu.on_failure = "cpu" serves on without it, '
        'gpu.mode = "off" never uses it',
    )


def go_on_without_gpus(error: DeviceError, choice: DeviceFailure, service: Service) -> None:
    """Tells that a GPU has failed and the CPUs take over. Raises the error where the operator wants an end."""
    if choice == "exit":
        raise error
    journal.report_block(render_error(error))
    journal.warn("gpu", "loading anew for the CPUs alone (gpu.on_failure)")
    service.replacing()
    for code in _OUTDATED_CODES:
        service.withdraw(code)
    message = f"{error.because}; everything is computed on the CPUs until the daemon is restarted"
    service.found(Reason(FAILED_CODE, Effect.WARNS, message, remedy=error.remedy), degrades=True)
