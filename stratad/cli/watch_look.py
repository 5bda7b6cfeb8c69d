"""One look at the daemon, and what has happened between two of them: numbers only, no text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# By name: the series of a metric, as labels and value.
Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


@dataclass(frozen=True, slots=True)
class Look:
    """What the daemon said at one moment: its status document and its metrics.

    `at_seconds` is a monotonic clock's.
    """

    at_seconds: float
    status: Mapping[str, Any]
    samples: Samples

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the first series that has these labels; None when there is none."""
        wanted = labels.items()
        for its_labels, value in self.samples.get(name, ()):
            if wanted <= its_labels.items():
                return value
        return None

    def label_values(self, name: str, label: str) -> tuple[str, ...]:
        """Values of a label over all series of a metric, each once, numbers in their order."""
        found = {labels[label] for labels, _ in self.samples.get(name, ())}
        return tuple(
            sorted(found, key=lambda text: (not text.isdecimal(), int(text) if text.isdecimal() else 0))
        )


def read_samples(text: str) -> Samples:
    """A scrape's series by name. Raises ValueError for what is no scrape."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@dataclass(frozen=True, slots=True)
class SliceRow:
    """One slice: shares of computing time that it waited, and bytes a second that it read while computing."""

    slice_index: str
    nodes: str
    local_ratio: float | None
    wait_ratio: float | None
    drain_ratio: float | None
    read_bytes_per_second: float | None
    workers: int | None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node: what of the arena lies there, and its memory."""

    node_id: str
    arena_bytes: float
    available_bytes: float | None
    total_bytes: float | None


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU: shares of the router's choices that VRAM answered, and of computing time.

    `hit_ratio` is since the look before and `total_hit_ratio` since the start; None without choices or a cache.
    `wait_ratio` is of the decode thread's waiting for this GPU, `pool_ratio` of the pool's work on its layers.
    """

    gpu: str
    hit_ratio: float | None
    total_hit_ratio: float | None
    resident_experts: int
    slots: int
    wait_ratio: float | None
    pool_ratio: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened between two looks; every rate is per second, and None where it cannot be told."""

    tokens_rate: float | None
    steps_rate: float | None
    step_seconds: float | None
    prompt_rate: float | None
    reused_ratio: float | None
    decode_share: float | None
    prompt_share: float | None
    loaded_rate: float | None


class Difference:
    """Two looks at one daemon; the earlier one may be missing."""

    def __init__(self, earlier: Look | None, later: Look) -> None:
        self._earlier = earlier
        self._later = later

    def increase(self, name: str, **labels: str) -> float | None:
        """How much a counter has grown; None without an earlier look, or when the daemon has started anew."""
        after = self._later.value(name, **labels)
        before = self._earlier.value(name, **labels) if self._earlier else None
        if after is None or before is None or after < before:
            return None
        return after - before

    def rate(self, name: str, **labels: str) -> float | None:
        """That a second."""
        return ratio(self.increase(name, **labels), self.elapsed_seconds)

    @property
    def elapsed_seconds(self) -> float | None:
        """Time between the two."""
        return self._later.at_seconds - self._earlier.at_seconds if self._earlier else None

    def progress(self) -> Progress:
        """The daemon as a whole."""
        computed = self.increase("stratad_prompt_tokens_total")
        reused = self.increase("stratad_prompt_tokens_cached_total")
        prompt = None if computed is None or reused is None else computed + reused
        return Progress(
            tokens_rate=self.rate("stratad_generation_tokens_total"),
            steps_rate=self.rate("stratad_decode_steps_total"),
            step_seconds=ratio(
                self.increase("stratad_decode_seconds_total"), self.increase("stratad_decode_steps_total")
            ),
            prompt_rate=self.rate("stratad_prompt_tokens_total"),
            reused_ratio=ratio(reused, prompt),
            decode_share=self.rate("stratad_decode_seconds_total"),
            prompt_share=self.rate("stratad_prefill_seconds_total"),
            loaded_rate=self._loaded_rate(),
        )

    def _loaded_rate(self) -> float | None:
        """Progress of the stage of loading that runs; None when it has only begun."""
        if self._earlier is None or self._earlier.status["stage"] != self._later.status["stage"]:
            return None
        gained = self._later.status["loaded_ratio"] - self._earlier.status["loaded_ratio"]
        return ratio(gained, self.elapsed_seconds) if gained > 0 else None

    def slices(self) -> Iterator[SliceRow]:
        """Each slice of the pool, whether it is placed or not."""
        placement = self._later.status["placement"] or {"slices": []}
        by_index = {str(part["slice"]): part for part in placement["slices"]}
        computing_seconds = self.increase("stratad_engine_seconds_total")
        for index in self._later.label_values("stratad_pool_tasks_total", "slice"):
            part = by_index.get(index, {"home_nodes": [], "local_ratio": None})
            workers = self._later.value("stratad_pool_workers", slice=index)
            yield SliceRow(
                index,
                ",".join(map(str, part["home_nodes"])) or "any",
                part["local_ratio"],
                ratio(
                    self.increase("stratad_pool_barrier_wait_seconds_total", slice=index), computing_seconds
                ),
                ratio(self.increase("stratad_pool_drain_seconds_total", slice=index), computing_seconds),
                ratio(self._read_bytes(index), computing_seconds),
                None if workers is None else int(workers),
            )

    def _read_bytes(self, index: str) -> float | None:
        parts = [
            self.increase(name, slice=index)
            for name in ("stratad_expert_bytes_total", "stratad_dense_bytes_total")
        ]
        return None if None in parts else sum(part or 0.0 for part in parts)

    def gpus(self) -> Iterator[GpuRow]:
        """Each GPU that takes part."""
        computing_seconds = self.increase("stratad_engine_seconds_total")
        hits, misses = "stratad_expert_cache_hits_total", "stratad_expert_cache_misses_total"
        for gpu in self._later.label_values("stratad_gpu_steps_total", "gpu"):
            slots = self._later.value("stratad_expert_cache_slots", gpu=gpu) or 0.0
            has_cache = slots > 0
            wait = self.increase("stratad_gpu_wait_seconds_total", gpu=gpu)
            pool = self.increase("stratad_gpu_pool_seconds_total", gpu=gpu)
            yield GpuRow(
                gpu,
                _hit_ratio(self.increase(hits, gpu=gpu), self.increase(misses, gpu=gpu))
                if has_cache
                else None,
                _hit_ratio(self._later.value(hits, gpu=gpu), self._later.value(misses, gpu=gpu))
                if has_cache
                else None,
                int(self._later.value("stratad_expert_cache_resident", gpu=gpu) or 0.0),
                int(slots),
                ratio(wait, computing_seconds),
                ratio(pool, computing_seconds),
            )

    def nodes(self) -> Iterator[NodeRow]:
        """Each node of the machine."""
        for node_id in self._later.label_values("stratad_node_memory_total_bytes", "node"):
            yield NodeRow(
                node_id,
                self._later.value("stratad_arena_bytes", node=node_id) or 0.0,
                self._later.value("stratad_node_memory_available_bytes", node=node_id),
                self._later.value("stratad_node_memory_total_bytes", node=node_id),
            )


def _hit_ratio(hits: float | None, misses: float | None) -> float | None:
    return None if hits is None or misses is None else ratio(hits, hits + misses)


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part / whole`; None when one is unknown or nothing can be divided by."""
    return None if part is None or not whole else part / whole
