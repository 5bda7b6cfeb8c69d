"""docs/DOCTOR.md, made from the table of checks.

`pytest tests/golden --update-golden` writes it anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratad.doctor.check import Check, Group
from stratad.doctor.table import CHECKS

_HEAD = """\
# The doctor

Generated from the checks in `stratad/doctor/` by `pytest tests/golden --update-golden`; do not edit.

<!-- block: runs -->
```sh
stratactl doctor                              # this machine and the configured service
stratactl doctor --config my.toml             # with the arena of that configuration's model
stratactl capture machine.tar.xz
stratactl doctor --root machine.tar.xz        # a machine that was written down, here or elsewhere
stratactl doctor --all                        # also what is fine, and what could not be looked at
stratactl doctor --json                       # one JSON document
```

It only looks: nothing is changed, and every remedy is yours to type. As root it sees more (memory modules, the
kernel's log, other processes' threads). Every check gives one finding:

| severity | meaning |
|---|---|
| error | keeps the service from working, or from what was promised |
| warning | costs speed or will |
| hint | worth knowing |
| unknown | could not be looked at here; the message says why |
| fine | looked at, and well |

Exit status: 0 when nothing is worse than a warning (with `--strict`: than a hint), 1 for an error (with `--strict`:
or a warning), 3 when no plan suits, 4 when the running daemon's pages are below their limit, 2 for a wrong option.

A source named `seed`, `pub` or `trap` is a field report, by the number of its public issue; those with measured arms
are in [PLANNER.md](PLANNER.md), and tests carry the same names. "Lab" is [LAB.md](LAB.md). Where a row says that
nothing was measured, nothing was. The finding itself names the commands, with this machine's numbers.
"""


def doctor_document(checks: Sequence[Check] = CHECKS) -> str:
    """Give the text of docs/DOCTOR.md."""
    lines = [_HEAD, f"{len(checks)} checks:", "", "| code | question | at worst |", "|---|---|---|"]
    lines += [f"| [`{c.code}`](#{c.code}) | {c.question} | {_severities(c)[0]} |" for c in checks]
    for group in Group:
        rows = [check for check in checks if check.group is group]
        lines += ["", f"## {group.value[:1].upper()}{group.value[1:]}"]
        for check in rows:
            lines += [
                "",
                f"### {check.code}",
                "",
                f"{check.question} Can be: {', '.join(_severities(check))}.",
                "",
                f"Why it matters: {check.why}",
                "",
                f"Source: {check.source}.",
            ]
    return "\n".join(lines) + "\n"


def _severities(check: Check) -> list[str]:
    return sorted((severity.value for severity in check.severities), key=["error", "warning", "hint"].index)
