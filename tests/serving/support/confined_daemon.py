"""The real daemon, after this process has lost something: `python -m ... KIND --config FILE`.

KIND is "no-placement" (a seccomp filter answers EPERM to the memory-policy calls, as a container's may),
"no-lock" (RLIMIT_MEMLOCK of one page and no CAP_IPC_LOCK) or "one-cpu" (an affinity mask of one CPU).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
# Placement's calls by number; seccomp(2) and the kernel's syscall tables.
PLACEMENT_CALLS = {
    "x86_64": {"mbind": 237, "set_mempolicy": 238, "move_pages": 279},
    "aarch64": {"mbind": 235, "set_mempolicy": 237, "move_pages": 239},
}
CAP_IPC_LOCK = 14
CAPABILITY_VERSION_3 = 0x20080522


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def refuse_placement() -> None:
    """From now on this process and its threads get EPERM for mbind, set_mempolicy and move_pages."""
    load_number, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    numbers = sorted(PLACEMENT_CALLS[platform.machine()].values())
    instructions = [struct.pack("HBBI", load_number, 0, 0, 0)]
    for index, number in enumerate(numbers):
        to_refusal = len(numbers) - index
        instructions.append(struct.pack("HBBI", jump_if_equal, to_refusal, 0, number))
    instructions += [struct.pack("HBBI", give, 0, 0, allow), struct.pack("HBBI", give, 0, 0, refuse)]
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = _FilterProgram(len(instructions), ctypes.cast(code, ctypes.c_void_p))
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))


def _prctl(option: int, *arguments: object) -> None:
    padded = [*arguments, *[ctypes.c_ulong(0)] * (4 - len(arguments))]
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, *padded) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def refuse_locking() -> None:
    """No memory can be locked: neither by limit nor by capability."""
    library = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    if library.capget(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    words = list(struct.unpack("6I", data.raw))
    words[0] &= ~(1 << CAP_IPC_LOCK)
    words[1] &= ~(1 << CAP_IPC_LOCK)
    if library.capset(header, struct.pack("6I", *words)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))


def leave_one_cpu() -> None:
    """This process may use the first of its CPUs only."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


KINDS = {"no-placement": refuse_placement, "no-lock": refuse_locking, "one-cpu": leave_one_cpu}


def main() -> None:
    """Loses what KIND says, then is the daemon."""
    KINDS[sys.argv.pop(1)]()
    from stratad.daemon.main import main as daemon_main

    daemon_main()


if __name__ == "__main__":
    main()
