"""Which batches `stratactl bench` multiplies: weight types, shapes, token counts; worked out before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from stratad.gguf.model import ModelFacts
from stratad.gguf.tensor_types import GGML_TYPES

_TYPES = {kind.name: kind for kind in GGML_TYPES.values()}
# The types of the mixture that most models are served in, and the usual one of eight bits.
DEFAULT_WEIGHT_TYPES = ("Q4_K", "Q6_K", "Q8_0")
# One expert of a typical model.
DEFAULT_ROWS, DEFAULT_COLUMNS = 768, 2048
ROW_UNIT = 16
# Experts of one token, as most models have them.
USED_COUNT = 8
# So much more than the last cache is read before anything is read again.
CACHE_MULTIPLE = 2
LEAST_BYTES = 64 << 20
# Rows are multiplied four tokens at a time, so there the counts lie close together.
EXPERT_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)
DENSE_TOKENS = (1, 2, 4, 6, 8, 12, 16, 32, 64)


class BatchPath(StrEnum):
    """How a batch is multiplied: on the pool in one of three ways, or by ggml, which gets what the pool declines."""

    ROWS = "rows"
    PANELS = "panels"
    TILES = "tiles"
    GGML = "ggml"


class BatchForm(StrEnum):
    """A layer's experts with as many tokens each, or one dense matrix of all their rows."""

    EXPERTS = "experts"
    DENSE = "dense"

    @property
    def token_counts(self) -> tuple[int, ...]:
        """Tokens of one matrix that are measured, ascending."""
        return EXPERT_TOKENS if self is BatchForm.EXPERTS else DENSE_TOKENS


@dataclass(frozen=True, slots=True, order=True)
class WeightShape:
    """A type of weights, as GGUF names it, and the rows and columns of one expert's matrix."""

    weight_type: str
    rows: int = DEFAULT_ROWS
    columns: int = DEFAULT_COLUMNS

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix."""
        kind = _TYPES[self.weight_type]
        return self.rows * self.columns // kind.block_elements * kind.block_bytes


@dataclass(frozen=True, slots=True)
class BatchCase:
    """Weights of one shape: so many matrices that they do not stay in a cache."""

    shape: WeightShape
    matrix_count: int

    def operations(self, tokens: int) -> int:
        """Additions and multiplications of one pass with `tokens` tokens for each matrix."""
        return 2 * self.shape.rows * self.shape.columns * self.matrix_count * tokens


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What is measured: the cases, on these CPUs of one node, with these row kernels."""

    cases: tuple[BatchCase, ...]
    node_id: int
    cpu_ids: tuple[int, ...]
    kernels: str
    places_memory: bool


def usual_shapes() -> tuple[WeightShape, ...]:
    """Those measured where no model is known."""
    return tuple(map(WeightShape, DEFAULT_WEIGHT_TYPES))


def shapes_of(model: ModelFacts) -> tuple[WeightShape, ...]:
    """Give a shape for every type of weights that a model keeps in the arena: its experts', where it has such."""
    shapes = {tensor.type_name: WeightShape(tensor.type_name) for tensor in model.dense_tensors}
    for tensor in model.expert_tensors:
        # (columns, rows, experts); slices are cut at multiples of 16 rows.
        columns, rows = tensor.shape[:2]
        fits = rows % ROW_UNIT == 0
        shapes[tensor.type_name] = WeightShape(tensor.type_name, rows if fits else DEFAULT_ROWS, columns)
    return tuple(shapes.values())


def batch_cases(
    shapes: Iterable[WeightShape], cache_bytes: int | None, most_bytes: int
) -> tuple[BatchCase, ...]:
    """Give a case for every shape: past the last cache, and within what may be taken.

    Args:
        shapes: What to measure.
        cache_bytes: Last-level cache that the CPUs share; None when unknown.
        most_bytes: The most memory for one case.
    """
    wanted = min(most_bytes, max(LEAST_BYTES, CACHE_MULTIPLE * (cache_bytes or 0)))
    cases = []
    for shape in sorted(set(shapes)):
        groups = max(1, wanted // (USED_COUNT * shape.matrix_bytes))
        cases.append(BatchCase(shape, USED_COUNT * groups))
    return tuple(cases)
