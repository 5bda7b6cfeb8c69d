"""What the machine-check log says of the link between packages."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Where captured machines and machines with a classic log daemon have it.
LOG_PATHS = ("/var/log/dmesg", "/var/log/mcelog", "/var/log/kern.log", "/var/log/messages")

# rasdaemon's and mcelog's words for UPI code 22h; seed 3413 found exactly this line at both ends of its link.
_LANE_FAILURE = re.compile(
    r"phy lane failure|recovery in x8 width|(?:upi|qpi).{0,40}\bhalf[- ]width", re.IGNORECASE
)
_LINK_ERROR = re.compile(r"\b(?:UPI|QPI|xGMI|WAFL)\b.{0,80}\b(?:error|CRC|failure|degraded)\b", re.IGNORECASE)
# Links of the same name between GPUs are another matter.
_GPU_DRIVER = re.compile(r"\bamdgpu\b", re.IGNORECASE)
# An undecoded record of the kernel: "CPU 0: Machine Check: 0 Bank 5: c80000c000220e0f".
_RAW = re.compile(r"Machine Check(?: Exception)?:\s*\w+\s+Bank\s+(\d+):\s*([0-9a-fA-F]{16})")
_BUS_ERROR_BIT = 1 << 11
_LANE_FAILURE_CODE = 0x22


@dataclass(frozen=True, slots=True)
class LinkRecords:
    """How many records of the log are about a link, how many of those say that lanes failed, and the last one."""

    record_count: int
    lane_failure_count: int
    last_line: str | None


def link_records(log: str) -> LinkRecords:
    """Give what a kernel or machine-check log says of the links between packages.

    Source: Intel Software Developer's Manual volume 3B, machine-check codes of the UPI banks (5, 12, 19 on Skylake-SP:
    model code 22h is a lane failure with recovery at reduced width); seed 3413.
    """
    count = failures = 0
    last = None
    for line in log.splitlines():
        has_failed = bool(_LANE_FAILURE.search(line)) or _is_raw_lane_failure(line)
        if has_failed or (_LINK_ERROR.search(line) and not _GPU_DRIVER.search(line)):
            count += 1
            failures += has_failed
            last = line.strip() if has_failed or not failures else last
    return LinkRecords(count, failures, last)


def _is_raw_lane_failure(line: str) -> bool:
    match = _RAW.search(line)
    if match is None or int(match[1]) not in (5, 12, 19):
        return False
    status = int(match[2], 16)
    return bool(status & _BUS_ERROR_BIT) and (status >> 16) & 0x3F == _LANE_FAILURE_CODE
