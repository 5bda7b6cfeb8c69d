"""`make test-upstream`: upstream's operator tests against our device, with refusals listed; `--all` takes hours."""

from __future__ import annotations

import argparse
import sys

from tests.upstream.runs import BOUNDED, FULL, Run, execute


def show(run: Run) -> bool:
    """Runs the cases and prints a line for them and one for each refusal and failure; whether all passed."""
    outcome = execute(run)
    is_good = outcome.exit_status == 0 and outcome.passed == outcome.total > 0
    print(
        f"{run.name}: {outcome.passed}/{outcome.total} passed, {len(outcome.refused)} refused, "
        f"{outcome.computed_by_pool} {run.counter} by the pool{'' if is_good else '  FAILED'}",
        flush=True,
    )
    for line in (*outcome.failed, *outcome.refused):
        print(f"  {line}")
    if not is_good:
        print(outcome.tail)
    return is_good


def main() -> int:
    """Exit status 1 when a case failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every case of the three operations")
    verdicts = [show(run) for run in (FULL if parser.parse_args().all else BOUNDED)]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
