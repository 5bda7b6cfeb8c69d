"""The run over batches: every path of every count, one beside the other, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from stratad.bench.batch_cases import BatchCase, BatchForm, BatchPath
from stratad.bench.measure import LEAST_ROUNDS, MOST_ROUNDS, Report
from stratad.bench.probe import BatchProbe
from stratad.bench.results import BatchPoint, BatchResult

# Of the seconds that the whole run may take, for each weight type.
TYPE_SHARE = 0.1


def measure_batches(
    cases: Sequence[BatchCase],
    open_probe: Callable[[BatchCase], BatchProbe],
    clock: Callable[[], float],
    seconds: float,
    report: Report,
) -> tuple[BatchResult, ...]:
    """Multiply every case in rounds until its share of `seconds` is used; three rounds at least.

    Args:
        cases: What to multiply.
        open_probe: Places a case's weights; called for one case at a time.
        clock: Seconds that never go back.
        seconds: What the whole benchmark may take.
        report: Hears of every step.
    """
    results: list[BatchResult] = []
    for index, case in enumerate(cases):
        shown = partial(_report_step, report, case.shape.weight_type, index / len(cases))
        results += _measure_case(case, open_probe(case), clock, TYPE_SHARE * seconds, shown)
    return tuple(results)


def _report_step(report: Report, weight_type: str, fraction: float, name: str) -> None:
    report(f"batches of {weight_type}: {name}", fraction)


def _measure_case(
    case: BatchCase,
    probe: BatchProbe,
    clock: Callable[[], float],
    seconds: float,
    report: Callable[[str], None],
) -> list[BatchResult]:
    paths = probe.paths
    keys = [(form, tokens) for form in BatchForm for tokens in form.token_counts]
    samples: dict[tuple[BatchForm, int, BatchPath], list[float]] = {
        (form, tokens, path): [] for form, tokens in keys for path in paths
    }
    start_seconds = clock()
    for round_index in range(MOST_ROUNDS + 1):
        if round_index > LEAST_ROUNDS and clock() - start_seconds >= seconds:
            break
        for form, tokens in keys:
            report(f"{tokens} tokens, {form}")
            for path in _turned(paths, round_index):
                elapsed_seconds = probe.multiply(path, form, tokens)
                # The first round only warms up.
                if round_index > 0:
                    samples[form, tokens, path].append(elapsed_seconds)
    return [
        BatchResult(
            case,
            form,
            tuple(
                BatchPoint(tokens, path, tuple(samples[form, tokens, path]))
                for tokens in form.token_counts
                for path in paths
            ),
        )
        for form in BatchForm
    ]


def _turned(paths: tuple[BatchPath, ...], turn: int) -> tuple[BatchPath, ...]:
    """Each round begins with another path: who comes first finds other caches than who comes last."""
    first = turn % len(paths)
    return (*paths[first:], *paths[:first])
