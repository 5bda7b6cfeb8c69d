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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import (
    CpuModel,
    MemoryHardware,
    Objective,
)
from planner.hardware import Generation, generation_of
from tests.support.machines import GIB

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
