"""Measurements of this machine as facts: what `stratactl bench` and `stratactl tune` recorded. Values only.

A benchmark replaces the cost model's defaults one by one; only a tuning result, measured end to end, overrules
a choice (ADR 0012).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from planner.quantity import median
from planner.request import Objective, Policy

Word = TypeVar("Word")

SCHEMA_VERSION = 1
# Seed 3708: the same pool gave medians of 58.7 and 49.2 in two fresh starts. Fewer starts prove nothing.
LEAST_STARTS = 3
# Two values have hardly an interval: Student's factor for them is 64, for three 10 (docs/TUNE.md).
LEAST_BLOCKS = 3
# The placement gate (DESIGN D8): a result from pages that lay elsewhere says nothing about a placed policy.
LEAST_LOCAL_RATIO = 0.95


# Where a number of tokens would stand: none is enough (never), or none too many (any).
NO_TOKENS = 2**31 - 1


class CalibrationError(ValueError):
    """A bench.json or tune.json that is not one; the message starts with the path of the field at fault."""


@dataclass(frozen=True, slots=True, order=True)
class BandwidthCell:
    """Bytes a second that all cores of one node read from one node's memory."""

    reader_node: int
    memory_node: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True, order=True)
class SweepPoint:
    """Expert bytes a second that so many workers of one node multiply out of their own node's memory."""

    worker_count: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Measured seconds per layer for working together; None leaves the default."""

    base_seconds: float | None = None
    local_seconds: float | None = None
    cross_seconds: float | None = None
    wake_seconds: float | None = None
    claim_seconds: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class TypeLimits:
    """How many tokens of one matrix make which way of multiplying a weight type the fastest.

    `panel_tokens` and `tile_tokens`: from so many on by panels or tiles (NO_TOKENS: never). The other two: the most
    that the pool takes, of experts on average (NO_TOKENS: any number).
    """

    weight_type: str
    panel_tokens: int
    tile_tokens: int
    expert_pool_tokens: int
    dense_pool_tokens: int


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """Limits by weight type, and the row kernels they were measured with."""

    kernels: str
    limits: tuple[TypeLimits, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What `stratactl bench` measured on the machine with this fingerprint; every part may be absent.

    `kernel_release` and `measured_at` (UTC, as ISO 8601 writes it) say when it holds; None where nobody noted it.
    """

    machine_fingerprint: str
    bandwidth: tuple[BandwidthCell, ...] = ()
    core_rate: float | None = None
    layer_costs: LayerCosts = LayerCosts()
    worker_sweep: tuple[SweepPoint, ...] = ()
    kernel_release: str | None = None
    measured_at: str | None = None
    stratad_version: str | None = None
    batches: BatchRecord | None = None

    @property
    def is_complete(self) -> bool:
        """Whether streaming and working together were both measured, so that an estimate rests on neither
        default.
        """
        has_rate = self.core_rate is not None or bool(self.worker_sweep)
        return bool(self.bandwidth) and has_rate and self.layer_costs.cross_seconds is not None


@dataclass(frozen=True, slots=True)
class TuneResult:
    """One policy served end to end: a median of each fresh start, and the lowest local ratio verified.

    `slice_count` tells a split by node from one by package; None is either.
    """

    policy: Policy
    node_ids: tuple[int, ...]
    worker_count: int
    tokens_per_second: tuple[float, ...]
    local_ratio: float | None = None
    slice_count: int | None = None

    @property
    def median_tokens_per_second(self) -> float:
        """The median over starts."""
        return median(self.tokens_per_second)

    @property
    def counts(self) -> bool:
        """Whether it may decide: enough starts, and pages where a placed policy wants them."""
        is_placed = self.policy in (Policy.SPLIT, Policy.SINGLE_SOCKET)
        is_verified = not is_placed or (self.local_ratio or 0.0) >= LEAST_LOCAL_RATIO
        return len(self.tokens_per_second) >= LEAST_STARTS and is_verified


@dataclass(frozen=True, slots=True)
class TuneVerdict:
    """What pairs of starts say about the two best results, by their places in `Tuning.results`.

    `ratio_low` to `ratio_high` is where the first one's speed over the second's lies, from `block_count` mirrored
    blocks (docs/TUNE.md). Drift of the machine cancels inside a block; in the ranges of all starts it does not.
    """

    best: int
    second: int
    ratio_low: float
    ratio_high: float
    block_count: int

    @property
    def is_decided(self) -> bool:
        """Whether the best one is faster beyond doubt."""
        return self.ratio_low > 1 and self.block_count >= LEAST_BLOCKS


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `stratactl tune` measured: one machine, one arena, one objective, several policies.

    Without a verdict, the ranges of all starts decide.
    """

    machine_fingerprint: str
    arena_bytes: int
    objective: Objective
    results: tuple[TuneResult, ...]
    verdict: TuneVerdict | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything measured that a plan may use."""

    benchmark: Benchmark | None = None
    tuning: Tuning | None = None


def benchmark_from_json(text: str) -> Benchmark:
    """Give the benchmark of a bench.json.

    Raises:
        CalibrationError: When a field is missing or of the wrong kind.
    """
    reader = _document(text, "bench")
    costs = reader.optional_child("layer_costs")
    batches = reader.optional_child("batches")
    return Benchmark(
        machine_fingerprint=reader.text("machine_fingerprint"),
        bandwidth=tuple(
            sorted(
                BandwidthCell(
                    cell.integer("reader_node"), cell.integer("memory_node"), cell.rate("bytes_per_second")
                )
                for cell in reader.children("bandwidth")
            )
        ),
        core_rate=reader.optional_rate("core_bytes_per_second"),
        layer_costs=LayerCosts()
        if costs is None
        else LayerCosts(**{name: costs.optional_seconds(name) for name in LayerCosts.__dataclass_fields__}),
        worker_sweep=tuple(
            sorted(
                SweepPoint(point.integer("worker_count"), point.rate("bytes_per_second"))
                for point in reader.children("worker_sweep")
            )
        ),
        kernel_release=reader.optional_text("kernel_release"),
        measured_at=reader.optional_text("measured_at"),
        stratad_version=reader.optional_text("stratad_version"),
        batches=None if batches is None else _batch_record(batches),
    )


def _batch_record(reader: _Reader) -> BatchRecord:
    """Absent or null numbers of tokens are NO_TOKENS."""
    return BatchRecord(
        kernels=reader.text("kernels"),
        limits=tuple(
            sorted(
                TypeLimits(
                    limits.text("weight_type"),
                    *(
                        limits.token_count(name)
                        for name in TypeLimits.__dataclass_fields__
                        if name != "weight_type"
                    ),
                )
                for limits in reader.children("limits")
            )
        ),
    )


def tuning_from_json(text: str) -> Tuning:
    """Give the tuning of a tune.json.

    Raises:
        CalibrationError: When a field is missing or of the wrong kind.
    """
    reader = _document(text, "tune")
    results = reader.children("results")
    return Tuning(
        machine_fingerprint=reader.text("machine_fingerprint"),
        arena_bytes=reader.integer("arena_bytes"),
        objective=reader.word("objective", Objective),
        results=tuple(
            TuneResult(
                policy=result.word("policy", Policy),
                node_ids=result.ids("node_ids"),
                worker_count=result.integer("worker_count"),
                tokens_per_second=result.rates("tokens_per_second"),
                local_ratio=result.optional_seconds("local_ratio"),
                slice_count=result.optional_integer("slice_count"),
            )
            for result in results
        ),
        verdict=_verdict(reader.optional_child("verdict"), len(results)),
    )


def _verdict(reader: _Reader | None, result_count: int) -> TuneVerdict | None:
    if reader is None:
        return None
    return TuneVerdict(
        best=reader.place("best", result_count),
        second=reader.place("second", result_count),
        ratio_low=reader.rate("ratio_low"),
        ratio_high=reader.rate("ratio_high"),
        block_count=reader.integer("block_count"),
    )


def _document(text: str, name: str) -> _Reader:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{name} is not JSON: {error}") from error
    reader = _Reader(document, name)
    version = reader.integer("schema_version")
    if version != SCHEMA_VERSION:
        raise CalibrationError(f"{name}.schema_version is {version}, this version reads {SCHEMA_VERSION}")
    return reader


class _Reader:
    """Takes typed fields out of one object and names the field when it is not what it should be."""

    def __init__(self, document: object, path: str) -> None:
        if not isinstance(document, Mapping):
            raise CalibrationError(f"{path} is not an object")
        self._document: Mapping[str, object] = document
        self._path = path

    def _wrong(self, name: str, wanted: str) -> CalibrationError:
        return CalibrationError(f"{self._path}.{name} is not {wanted}")

    def text(self, name: str) -> str:
        value = self._document.get(name)
        if not isinstance(value, str) or not value:
            raise self._wrong(name, "a text")
        return value

    def integer(self, name: str) -> int:
        value = self._document.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._wrong(name, "a number of 0 or more")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._document.get(name) is None else self.text(name)

    def optional_integer(self, name: str) -> int | None:
        return None if self._document.get(name) is None else self.integer(name)

    def token_count(self, name: str) -> int:
        if self._document.get(name) is None:
            return NO_TOKENS
        value = self.integer(name)
        if value < 1:
            raise self._wrong(name, "a number of 1 or more")
        return value

    def place(self, name: str, count: int) -> int:
        value = self.integer(name)
        if value >= count:
            raise self._wrong(name, f"a place among {count} results")
        return value

    def rate(self, name: str) -> float:
        return self._positive(name, self._document.get(name))

    def rates(self, name: str) -> tuple[float, ...]:
        values = self._document.get(name)
        if not isinstance(values, list) or not values:
            raise self._wrong(name, "a list of numbers")
        return tuple(self._positive(name, value) for value in values)

    def _positive(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self._wrong(name, "a number above 0")
        return float(value)

    def optional_rate(self, name: str) -> float | None:
        return None if self._document.get(name) is None else self.rate(name)

    def optional_seconds(self, name: str) -> float | None:
        value = self._document.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self._wrong(name, "a number of 0 or more")
        return float(value)

    def word(self, name: str, kind: Callable[[str], Word]) -> Word:
        text = self.text(name)
        try:
            return kind(text)
        except ValueError as error:
            raise CalibrationError(f"{self._path}.{name} is {text!r}: {error}") from error

    def ids(self, name: str) -> tuple[int, ...]:
        values = self._document.get(name)
        if not isinstance(values, list) or not all(type(item) is int and item >= 0 for item in values):
            raise self._wrong(name, "a list of ids")
        return tuple(values)

    def children(self, name: str) -> tuple[_Reader, ...]:
        values = self._document.get(name, [])
        if not isinstance(values, list):
            raise self._wrong(name, "a list")
        return tuple(_Reader(item, f"{self._path}.{name}[{index}]") for index, item in enumerate(values))

    def optional_child(self, name: str) -> _Reader | None:
        value = self._document.get(name)
        return None if value is None else _Reader(value, f"{self._path}.{name}")
