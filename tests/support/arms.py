"""The measured arms of `tests/golden/arms` as machines, requests and bytes[reader][memory].

Everything is derived by rule from what a source states; a fact that no source states falls back on the
planner's own default. Nothing here looks at a case's name but `supplements` and `undecidable` of models.json,
which quote their source.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner import (
    ArenaSpec,
    BandwidthCell,
    Benchmark,
    Calibration,
    CostConstants,
    CpuModel,
    MemoryHardware,
    Objective,
    PlanRequest,
    Policy,
    Topology,
    machine_fingerprint,
)
from planner.advice import TIGHT_SHARE
from planner.candidates import fitted_parts, unplaced_parts
from planner.cost import (
    LARGE_MODEL_BYTES,
    Arm,
    Rest,
    prompt_seconds,
    rest_seconds,
    step_estimate,
    stream_seconds,
)
from planner.facts import gather_facts
from planner.hardware import GENERATION_ROWS, Generation, generation_of
from planner.rates import MachineRates, machine_rates
from planner.weigh import spread_reads
from tests.support.machines import GIB, GpuShape, MachineShape, even_nodes, machine_topology

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "arms"
GB_IN_GIB = 1e9 / GIB
# Threads of a pool with static row ranges find about 55 % of their rows near; cost-model: fitted.
STATIC_LOCAL_SHARE = 0.55
# A file read into the page cache by one thread, or an arena elsewhere than its pool, lies about so much there.
ONE_READER_SHARE = 0.85
# Where a source states neither memory nor cores.
DEFAULT_CORES = 24
# Other engines' threads spin through the gaps between layers: 20 ms in Strata, OpenMP and ggml longer.
OTHER_ENGINES_SPIN_SECONDS = 0.020
POLICY_CLASSES = ("split", "interleave", "single-socket", "not-single-socket", "not-blanket-interleave")
OTHER_CLASSES = ("local-placement", "thread-cap", "bandwidth-matrix", "tie", "inconclusive")
NUMBERS_OF: Mapping[Generation, tuple[str, int, int]] = {
    Generation.HASWELL: ("GenuineIntel", 6, 79),
    Generation.CASCADE_LAKE: ("GenuineIntel", 6, 85),
    Generation.ICE_LAKE: ("GenuineIntel", 6, 106),
    Generation.SAPPHIRE_RAPIDS: ("GenuineIntel", 6, 143),
    Generation.EMERALD_RAPIDS: ("GenuineIntel", 6, 207),
    Generation.XEON_6: ("GenuineIntel", 6, 173),
    Generation.ROME: ("AuthenticAMD", 23, 49),
    Generation.MILAN: ("AuthenticAMD", 25, 1),
    Generation.GENOA: ("AuthenticAMD", 25, 17),
    Generation.TURIN: ("AuthenticAMD", 26, 2),
}


@dataclass(frozen=True, slots=True)
class MeasuredArm:
    """One measured way to run. `kind` is the policy in the words of `reads_of`; `value` is better when larger."""

    name: str
    kind: str
    value: float
    workers: int | None = None
    node_count: int | None = None
    page_shares: tuple[float, ...] = ()
    is_sliced_pool: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One report: what is known of the box and the work, the arms, and what a planner should conclude."""

    case_id: str
    group: str
    machine: str | None
    cpu: str | None
    gpu_names: tuple[str, ...]
    gpu_nodes: tuple[int | None, ...]
    sockets: int
    node_count: int
    cores_per_socket: int
    node_gib: float | None
    used_gib: float
    memory: MemoryHardware
    is_link_halved: bool
    arena_gib: float | None
    model: str | None
    other_gib: float
    cpu_share: float
    tokens_per_step: float
    spin_seconds: float
    holds_all_experts: bool
    objective: Objective
    is_read_test: bool
    can_interleave_staging_apart: bool
    arms: tuple[MeasuredArm, ...]
    winner_class: str
    undecidable: str | None = None
    is_choice: bool = True
    is_ranking: bool = True


@dataclass(frozen=True, slots=True)
class Model:
    """What one token reads."""

    layers: int
    token_bytes: float
    total_bytes: float


def load_cases() -> tuple[Case, ...]:
    """Give every case that can be checked, seeds first."""
    seeds = json.loads((FOLDER / "seed-arms.json").read_text())["scenarios"]
    public = json.loads((FOLDER / "public-arms.json").read_text())["cases"]
    tables = json.loads((FOLDER / "models.json").read_text())
    cases = [seed_case(item, tables) for item in seeds if item["use"].startswith("policy_check")]
    for item in public:
        if not item.get("seed"):
            cases += public_cases(item, tables)
    return tuple(cases)


def blanked(case: Case, number: int) -> Case:
    """Give a case without names: ids, machines and GPUs gone, the CPU reduced to its generation."""
    return replace(
        case,
        case_id=f"case-{number}",
        machine=None,
        cpu=generation_named(case.cpu).value,
        gpu_names=tuple("GPU" for _ in case.gpu_names),
    )


def generation_named(cpu: str | None) -> Generation:
    if cpu is not None and cpu in list(Generation):
        return Generation(cpu)
    return generation_of(CpuModel(name=cpu))


# --- reading the two files -------------------------------------------------------------------------------


def supplement(case_id: str, tables: dict[str, Any]) -> dict[str, Any]:
    return next((item["facts"] for item in tables["supplements"] if item["case"] == case_id), {})


def middle(value: Any) -> float | None:
    if isinstance(value, list):
        return statistics.fmean(value)
    return None if value is None else float(value)


def seed_case(item: dict[str, Any], tables: dict[str, Any]) -> Case:
    box, work = item["box"], item["workload"]
    more = supplement(item["id"], tables)
    share = middle(work.get("fraction_experts_on_cpu_pct"))
    if share is None:
        share = middle(work.get("derived_fraction_experts_on_cpu_pct"))
    if share is None and work.get("vram_hit_rate_pct"):
        share = 100 - (middle(work["vram_hit_rate_pct"]) or 0)
    if share is None:
        share = 100 - (work.get("pcie_gather_share_of_misses_pct") or 0)
    other = work.get("other_host_buffers") or {}
    per_node = box.get("memory_per_node") or {}
    free_gb = box.get("memory_free_per_node_GB_at_start")
    node_gib = per_node.get("GiB") or (per_node["GB"] * GB_IN_GIB if "GB" in per_node else None)
    total = box.get("memory_total") or {}
    if free_gb:
        node_gib = free_gb * GB_IN_GIB
    elif node_gib is None and total:
        node_gib = (total.get("GiB") or total["GB"] * GB_IN_GIB) / box["numa_nodes"]
    bandwidth = box.get("node_bandwidth_GBps")
    megatransfers = re.search(r"DDR\d-(\d+)", box.get("memory_type") or "")
    gpus = [gpu for gpu in box.get("gpus") or [] if "display" not in str(gpu.get("model"))]
    is_prompt = item["use"] == "policy_check_prompt_objective"
    return Case(
        case_id=item["id"],
        group="seed",
        machine=box.get("machine"),
        cpu=box.get("cpu"),
        gpu_names=tuple(str(gpu.get("model")) for gpu in gpus),
        gpu_nodes=tuple(gpu.get("numa_node") for gpu in gpus),
        sockets=box["sockets"],
        node_count=box["numa_nodes"],
        cores_per_socket=box.get("cores_per_socket") or more.get("cores_per_socket") or DEFAULT_CORES,
        node_gib=node_gib,
        used_gib=(box.get("idle_memory_GB") or 0) * GB_IN_GIB / box["numa_nodes"],
        memory=MemoryHardware(
            box.get("channels_populated_per_socket"),
            int(megatransfers[1]) if megatransfers else None,
            bandwidth * 1e9 if bandwidth else None,
        ),
        is_link_halved="half width" in (box.get("interconnect") or ""),
        arena_gib=work.get("expert_memory_GiB") or work.get("derived_expert_memory_GiB"),
        model=work.get("model") or "Qwen3.8-Flash-Next",
        other_gib=sum(v for k, v in other.items() if v and k.endswith("_GiB") and "free" not in k),
        cpu_share=share / 100,
        tokens_per_step=tokens_per_step(work.get("engine") or item["source"].split("/")[-1], tables),
        spin_seconds=spin_seconds(work.get("tuning") or []),
        holds_all_experts=bool(work.get("arena_path")),
        objective=Objective.PROMPT if is_prompt else Objective.DECODE,
        is_read_test=False,
        can_interleave_staging_apart=True,
        arms=tuple(arm for raw in item["arms"] if (arm := seed_arm(raw, item)) is not None),
        winner_class=seed_class(item),
    )


def spin_seconds(tuning: list[str]) -> float:
    stated = re.search(r"SPIN_US=(\d+)", " ".join(tuning))
    return int(stated[1]) * 1e-6 if stated else OTHER_ENGINES_SPIN_SECONDS


def seed_class(item: dict[str, Any]) -> str:
    expected = item["expected_planner_choice"]
    return (
        "not-single-socket"
        if expected.startswith("not single_socket")
        else expected.split(maxsplit=1)[0].rstrip(":").replace("_", "-")
    )


def tokens_per_step(engine: str, tables: dict[str, Any]) -> float:
    found = (row["tokens_per_step"] for row in tables["engines"] if re.search(row["pattern"], engine))
    return float(next(found, 1.0))


def seed_arm(raw: dict[str, Any], item: dict[str, Any]) -> MeasuredArm | None:
    value = scenario_value(raw, item)
    if value is None:
        return None
    kind = {
        "split": "slices",
        "split_placed_plus_interleave": "slices",
        "split_unplaced": "slices-unplaced",
        "single_socket": "single",
        "spread_first_touch": "first-touch",
        "interleave": "interleave",
    }[raw["policy"]]
    if kind == "single" and raw["expert_memory_placed"] is False:
        kind = "remote"
    pages = raw.get("arena_pages")
    return MeasuredArm(
        name=raw["id"],
        kind=kind,
        value=value,
        workers=raw.get("workers"),
        page_shares=tuple(count / sum(pages.values()) for count in pages.values()) if pages else (),
        is_sliced_pool="split pool" in raw["config"] or "placement binary" in raw["config"],
    )


def scenario_value(raw: dict[str, Any], item: dict[str, Any]) -> float | None:
    if item["use"] == "policy_check_relative_only":
        return seed_relative(raw, item)
    if item["use"] == "policy_check_prompt_objective":
        return float(next(iter(raw["prompt"].values())))
    return seed_value(raw, item)


def seed_value(raw: dict[str, Any], item: dict[str, Any]) -> float | None:
    if raw["decode_median"] is not None:
        return float(raw["decode_median"])
    samples = raw.get("decode_samples")
    if samples:
        flat = [x for part in samples for x in (part if isinstance(part, list) else [part])]
        return float(statistics.median(flat))
    if raw.get("decode_range"):
        return statistics.fmean(raw["decode_range"])
    if raw.get("decode_by_task"):
        return statistics.fmean(raw["decode_by_task"].values())
    if "confined_change_pct" in item:
        return 100.0 + (item["confined_change_pct"] if raw["id"] == "confined" else 0)
    return seed_relative(raw, item)


def seed_relative(raw: dict[str, Any], item: dict[str, Any]) -> float | None:
    """Give a value on the scale of arm A = 100 where a report gives percentages only."""
    by_id = {arm["id"]: arm for arm in item["arms"]}
    if "relative_to_A_pct" in raw:
        return 100.0 + float(raw["relative_to_A_pct"])
    for other in item["arms"]:
        if other.get(f"relative_to_{raw['id']}_pct") is not None:
            base = other.get("relative_to_A_pct", 0) if raw["id"] != "A" else None
            if base is None:
                return 100.0
            return (100.0 + base) / (1 + other[f"relative_to_{raw['id']}_pct"] / 100)
    return 100.0 if raw["id"] == "A" and "F" in by_id else None


def public_cases(item: dict[str, Any], tables: dict[str, Any]) -> list[Case]:
    if item["winner_class"] not in (*POLICY_CLASSES, *OTHER_CLASSES):
        return []
    metrics = {arm["metric"] for arm in item["arms"] if arm["policy"] and arm["value"] is not None}
    metric = "decode_tok_s" if "decode_tok_s" in metrics else "read_gb_s"
    groups: dict[str, list[dict[str, Any]]] = {}
    for arm in item["arms"]:
        if arm["metric"] == metric and arm["policy"] not in (None, "unknown"):
            groups.setdefault(arm_group(arm["name"]), []).append(arm)
    return [public_case(item, tables, name, arms, metric) for name, arms in groups.items() if len(arms) > 1]


def arm_group(name: str) -> str:
    """Give the sub-experiment of an arm whose report measured two: CPU or GPU runs, a dense or a MoE model."""
    first = name.split(maxsplit=1)[0].lower()
    return first if first in ("cpu", "gpu", "dense", "moe") else ""


def public_case(
    item: dict[str, Any], tables: dict[str, Any], group: str, raw: list[dict[str, Any]], metric: str
) -> Case:
    box, more = item["box"], supplement(item["id"], tables)
    counts = [int(number) for number in re.findall(r"\b\d+\b", str(box["numa_nodes"] or ""))]
    sockets = box["sockets"] or (max(counts) if counts else 2)
    node_count = max(counts) if counts else sockets
    arms = tuple(public_arm(arm, counts) for arm in raw)
    models = (box["model"] or "").split("; ")
    gpu = box["gpu"] or ""
    has_gpu = group != "cpu" and bool(gpu) and not gpu.startswith("none") and metric == "decode_tok_s"
    single = [arm.workers for arm in arms if arm.kind == "single" and arm.workers]
    spread = [arm.workers for arm in arms if arm.kind != "single" and arm.workers]
    by_threads = max(single) if single else -(-max(spread) // sockets) if spread else DEFAULT_CORES
    is_policy = item["winner_class"] in (*POLICY_CLASSES, "local-placement")
    missing = [row["missing"] for row in tables["undecidable"] if row["case"] == item["id"]]
    nodes = [int(number) for number in re.findall(r"\d+", str(box["gpu_node"] or ""))]
    return Case(
        case_id=f"{item['id']}{f' ({group})' if group else ''}",
        group="open",
        machine=None,
        cpu=box["cpu"],
        gpu_names=(gpu,) if has_gpu else (),
        gpu_nodes=tuple(nodes) if nodes else (None,) if has_gpu else (),
        sockets=sockets,
        node_count=node_count,
        cores_per_socket=box["cores_per_socket"] or more.get("cores_per_socket") or by_threads,
        node_gib=box["mem_gib"] / node_count if box["mem_gib"] else None,
        used_gib=0.0,
        memory=memory_hardware(box["mem_channels"] or "", sockets),
        is_link_halved=False,
        arena_gib=box["cpu_expert_gib"],
        model=models[-1] if group == "dense" else models[0] or None,
        other_gib=0.0,
        cpu_share=more.get("cpu_share", 1.0),
        tokens_per_step=1.0,
        spin_seconds=OTHER_ENGINES_SPIN_SECONDS,
        holds_all_experts=False,
        objective=Objective.DECODE,
        is_read_test=metric == "read_gb_s",
        can_interleave_staging_apart="interleave-all" not in {arm["policy"] for arm in raw},
        arms=arms,
        winner_class=class_of_group(item["winner_class"], arms),
        undecidable=missing[0] if missing else None,
        is_choice=is_policy,
    )


def class_of_group(winner_class: str, arms: tuple[MeasuredArm, ...]) -> str:
    """Give the class of a sub-experiment; "not-blanket-interleave" stands for opposite winners in two of them."""
    if winner_class != "not-blanket-interleave":
        return winner_class
    best = max(arms, key=lambda arm: arm.value)
    return "interleave" if best.kind == "interleave" else "not-interleave"


def public_arm(raw: dict[str, Any], counts: list[int]) -> MeasuredArm:
    policy = raw["policy"]
    kind = {
        "first-touch": "first-touch",
        "distribute": "static",
        "single-node": "single",
        "single-socket": "single",
        "split": "slices",
        "split+interleave": "slices",
        "mirror": "slices",
        "remote": "remote-all",
    }.get(policy, "interleave")
    nodes = None
    if len(set(counts)) > 1 and "SNC" in raw["name"]:
        nodes = max(counts) if "SNC on" in raw["name"] else min(counts)
    return MeasuredArm(raw["name"], kind, float(raw["value"]), raw.get("threads"), nodes)


def memory_hardware(text: str, sockets: int) -> MemoryHardware:
    rate = re.search(r"(?:DDR\d|MRDIMM)-(\d+)", text)
    per_socket = re.search(r"(\d+)(?:x \S+| of \d+)? per socket", text)
    total = re.search(r"(\d+)(?:x \S+| DIMMs)(?: \(\d+ DIMMs)? total", text)
    channels = int(per_socket[1]) if per_socket else int(total[1]) // sockets if total else None
    return MemoryHardware(channels, int(rate[1]) if rate else None, None)


# --- the planner's view ----------------------------------------------------------------------------------


def model_of(case: Case) -> Model:
    tables = json.loads((FOLDER / "models.json").read_text())
    text = case.model or ""
    row = next((row for row in tables["models"] if re.search(row["pattern"], text)), tables["models"][0])
    bits = next(row["bits"] for row in tables["bits"] if re.search(row["pattern"], text))
    expert = row["expert_parameters"] * bits / 8
    return Model(row["layers"], row["layers"] * row["used"] * expert, row["layers"] * row["experts"] * expert)


def topology_of_case(case: Case, node_count: int | None = None) -> Topology:
    nodes = node_count or case.node_count
    per_package = max(1, nodes // case.sockets)
    numbers = NUMBERS_OF.get(generation_named(case.cpu))
    total = None if case.node_gib is None else case.node_gib * case.node_count / nodes
    shapes = even_nodes(
        nodes,
        max(1, case.cores_per_socket * case.sockets // nodes),
        nodes_per_package=per_package,
        total_gib=total or 0,
        free_gib=None if total is None else max(0.0, total - case.used_gib),
    )
    if total is None:
        shapes = tuple(replace(shape, total_bytes=None, free_bytes=None) for shape in shapes)
    gpus = tuple(
        GpuShape(f"0000:{index + 1:02x}:00.0", -1 if node is None else node)
        for index, node in enumerate(case.gpu_nodes)
    )
    model = None if numbers is None else CpuModel(*numbers, None, "a CPU")
    return machine_topology(MachineShape(shapes, gpus, cpu_model=model))


def allowed_policies(case: Case) -> tuple[Policy, ...]:
    """Any engine can be bound or interleaved from outside with numactl; slices need an engine that makes them."""
    can_slice = any(arm.kind in ("slices", "static") for arm in case.arms)
    return tuple(policy for policy in Policy if policy is not Policy.SPLIT or can_slice)


def request_of(case: Case) -> PlanRequest:
    model = model_of(case)
    held = held_bytes(case, model)
    per_layer = (int(held / model.layers),) * model.layers
    # An arena that holds every expert tells what a token reads better than a model's name does.
    scale = held / model.total_bytes if case.holds_all_experts else 1.0
    return PlanRequest(
        arena=ArenaSpec(int(held), int(model.token_bytes * scale), per_layer),
        other_host_bytes=int(case.other_gib * GIB),
        objective=case.objective,
        cpu_share=case.cpu_share,
        gpu_node_ids=None,
        allowed_policies=allowed_policies(case),
        tokens_per_step=case.tokens_per_step,
        has_gpu=bool(case.gpu_names),
        staging_placeable=case.can_interleave_staging_apart,
        pool_spin_seconds=case.spin_seconds,
        memory=case.memory,
    )


def held_bytes(case: Case, model: Model) -> float:
    """Give the arena: as stated, else the model's experts; what does not fit an engine streams from its file."""
    if case.arena_gib is not None:
        return case.arena_gib * GIB
    wanted = model.total_bytes * (case.cpu_share or 1.0)
    if case.node_gib is None:
        return wanted
    return min(wanted, TIGHT_SHARE * case.node_gib * case.node_count * GIB)


def calibration_of(case: Case, topology: Topology) -> Calibration | None:
    """A link stated to run at half width is a measured link."""
    if not case.is_link_halved:
        return None
    half = GENERATION_ROWS[generation_named(case.cpu)].link_bandwidth / 2
    cells = (BandwidthCell(0, 1, half), BandwidthCell(1, 0, half))
    return Calibration(Benchmark(machine_fingerprint(topology), cells))


@dataclass(frozen=True, slots=True)
class Prediction:
    """An arm with its predicted seconds."""

    arm: MeasuredArm
    seconds: float


def predictions(case: Case) -> tuple[Prediction, ...]:
    return tuple(Prediction(arm, predicted_seconds(case, arm)) for arm in case.arms)


def predicted_seconds(case: Case, arm: MeasuredArm) -> float:
    topology, request = topology_of_case(case, arm.node_count), request_of(case)
    facts = gather_facts(topology, request)
    calibration = calibration_of(case, topology)
    rates = machine_rates(facts, calibration.benchmark if calibration else None)
    setting = Setting(case, arm, rates, CostConstants())
    if case.is_read_test:
        return stream_seconds(setting.arm(1e9), rates, setting.constants)
    if case.objective is Objective.PROMPT:
        nodes = facts.gpu_node_ids
        found = prompt_seconds(setting.held_for_gpu(nodes), setting.package_of, nodes, setting.constants)
        assert found is not None, "a prompt case states its GPU's node"
        return found
    return step_estimate(setting.arm(step_bytes(request)), rates, setting.constants).step_seconds


def step_bytes(request: PlanRequest) -> float:
    return (request.arena.bytes_per_token or 0) * request.cpu_share * request.tokens_per_step


@dataclass(frozen=True, slots=True)
class Setting:
    """One arm on its machine: worker counts, page shares and what follows from them."""

    case: Case
    measured: MeasuredArm
    rates: MachineRates
    constants: CostConstants
    package_of: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        nodes = sorted(self.rates.node_bandwidth)
        per_package = max(1, len(nodes) // self.case.sockets)
        object.__setattr__(self, "package_of", {node: node // per_package for node in nodes})

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(self.package_of)

    @property
    def home(self) -> tuple[int, ...]:
        """The nodes of the first package, where a one-socket pool sits."""
        if self.case.is_read_test:
            return (0,)
        return tuple(node for node in self.nodes if self.package_of[node] == 0)

    def workers(self) -> dict[int, int]:
        on_one = self.measured.kind in ("single", "remote", "remote-all")
        nodes = self.home if on_one else self.nodes
        per_node = max(1, self.case.cores_per_socket * self.case.sockets // len(self.nodes))
        spare = 0 if self.case.is_read_test else 1
        count = self.measured.workers or self.stated_elsewhere() or max(1, per_node * len(nodes) - spare)
        if on_one:
            # The number is what a bound process was given; its pool is no larger than the socket.
            count = min(count, per_node * len(nodes))
        elif count <= self.case.cores_per_socket * self.case.sockets and self.measured.kind == "first-touch":
            return filled(count, nodes, per_node)
        return {node: count // len(nodes) + (i < count % len(nodes)) for i, node in enumerate(nodes)}

    def stated_elsewhere(self) -> int | None:
        """The thread count of another arm of the same kind: one box and one harness change one thing at a time."""
        same = (arm.workers for arm in self.case.arms if arm.kind == self.measured.kind)
        return next((count for count in same if count), None)

    def held_for_gpu(self, gpu_nodes: tuple[int, ...]) -> dict[int, float]:
        """Where the arena lies when a one-socket arm was bound to the GPU's socket."""
        held = self.held(float(request_of(self.case).arena.size_bytes))
        if self.measured.kind != "single":
            return held
        offset = gpu_nodes[0] - self.home[0]
        count = len(self.nodes)
        return {(node + offset) % count: size for node, size in held.items()}

    def arm(self, size: float) -> Arm:
        kind, workers = self.measured.kind, self.workers()
        workers = {node: count for node, count in workers.items() if count}
        is_sliced = kind in ("slices", "slices-unplaced", "static") or self.measured.is_sliced_pool
        total = sum(workers.values())
        per_node = max(1, self.case.cores_per_socket * self.case.sockets // len(self.nodes))
        is_crowded = total > 1.5 * per_node * len(workers)
        return Arm(
            read_bytes=self.reads(size, workers),
            workers=workers,
            package_of=self.package_of,
            slice_workers=max(workers.values()) if is_sliced and kind != "static" else total,
            is_sliced=is_sliced,
            layer_count=model_of(self.case).layers,
            rest_seconds=self.rest(size),
            must_wake=bool(self.case.gpu_names)
            and self.case.spin_seconds < self.rest(size) / model_of(self.case).layers,
            cores=dict.fromkeys(workers, per_node) if is_crowded else None,
        )

    def reads(self, size: float, workers: dict[int, int]) -> dict[int, dict[int, float]]:
        kind = self.measured.kind
        total = sum(workers.values())
        if kind == "slices":
            return {node: {node: size * count / total} for node, count in workers.items()}
        if kind == "static":
            return {
                node: self.leaning(size * count / total, node, STATIC_LOCAL_SHARE)
                for node, count in workers.items()
            }
        if self.measured.is_sliced_pool or kind == "slices-unplaced":
            return spread_reads(workers, self.held(size))
        return spread_reads(workers, self.held(size))

    def leaning(self, size: float, node: int, share: float) -> dict[int, float]:
        others = [other for other in self.nodes if other != node]
        if not others:
            return {node: size}
        return {node: size * share} | {other: size * (1 - share) / len(others) for other in others}

    def held(self, size: float) -> dict[int, float]:
        """Where the pages lie, from what fits and not from what the policy asks."""
        kind, nodes = self.measured.kind, self.nodes
        rooms = tuple(self.room() for _ in nodes)
        arena = int(request_of(self.case).arena.size_bytes)
        if self.measured.page_shares:
            shares = self.measured.page_shares
        elif kind == "single":
            shares = one_socket_shares(arena, rooms, nodes, self.home)
        elif kind in ("remote", "remote-all"):
            away = 1.0 if kind == "remote-all" else ONE_READER_SHARE
            shares = tuple(
                1 - away if node == nodes[0] else away if node == nodes[-1] else 0 for node in nodes
            )
        elif kind in ("first-touch", "slices-unplaced"):
            shares = tuple(part / arena for part in unplaced_parts(arena, rooms))
        else:
            shares = tuple(part / arena for part in fitted_parts(arena, rooms))
        return {node: size * share for node, share in zip(nodes, shares, strict=True) if share}

    def room(self) -> int | None:
        if self.case.node_gib is None:
            return None
        node_gib = self.case.node_gib * self.case.node_count / len(self.nodes)
        return int(max(0.0, node_gib - self.case.used_gib) * GIB)

    def rest(self, size: float) -> float:
        per_package = len(self.nodes) // self.case.sockets or 1
        rest = Rest(
            step_bytes=size,
            layer_count=model_of(self.case).layers,
            has_gpu=bool(self.case.gpu_names),
            is_large_model=model_of(self.case).total_bytes >= LARGE_MODEL_BYTES,
            package_bandwidth=self.rates.node_bandwidth[0] * per_package,
            package_cores=self.case.cores_per_socket,
        )
        return rest_seconds(rest, self.rates, self.constants)


def filled(count: int, nodes: tuple[int, ...], per_node: int) -> dict[int, int]:
    """Give worker counts by node: even over two packages, and one package first where the count barely passes it."""
    if count == per_node + 1:
        return {nodes[0]: per_node, nodes[1]: 1} if len(nodes) > 1 else {nodes[0]: count}
    return {node: count // len(nodes) + (i < count % len(nodes)) for i, node in enumerate(nodes)}


def one_socket_shares(
    arena: int, rooms: tuple[int | None, ...], nodes: tuple[int, ...], home: tuple[int, ...]
) -> tuple[float, ...]:
    at_home = [room for node, room in zip(nodes, rooms, strict=True) if node in home]
    known = sum(room for room in at_home if room is not None)
    fits = arena if None in at_home else min(arena, known)
    away = [node for node in nodes if node not in home]
    spilled = (arena - fits) / arena
    return tuple(
        (fits / arena) / len(home) if node in home else spilled / max(1, len(away)) for node in nodes
    )
