"""Draws a plan as SVG: nodes with their cores and memory, which slice lies where, and who reads it.

`python -m stratad.documents.pictures PLAN.json TOPOLOGY.json > picture.svg`, with what `stratactl plan --json` and
`stratactl topology --json` write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from planner.cpulist import parse_id_list
from planner.quantity import count_of, format_bytes

SLICE_COLOURS = ("#2f6fc4", "#d9822b", "#3d8f5f", "#8a5bb5", "#b5485d", "#5b7d8a", "#8a7d2b", "#4f4fb5")
REMOTE_COLOUR = "#b3261e"
INK, PALE, LINE = "#1f2933", "#f1f4f8", "#9aa5b1"
MARGIN, PANEL_WIDTH, GAP = 24, 250, 46
CORE, CORE_STEP, CORES_A_ROW = 24, 29, 8
ARROW_HEIGHT, MEMORY_HEIGHT = 76, 116


@dataclass(frozen=True, slots=True)
class NodeDrawing:
    """What is drawn of one node: cores by their first CPU, and bytes of each slice in its memory."""

    node_id: int
    cores: tuple[int, ...]
    memory_bytes: int | None
    slice_bytes: Mapping[int, int]
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A plan in the shape it is drawn in. `slice_of_cpu` has the workers' CPUs, `host_cpus` the server's."""

    nodes: tuple[NodeDrawing, ...]
    slice_of_cpu: Mapping[int, int]
    host_cpus: frozenset[int]
    title: str
    caption: str

    def x(self, index: int) -> int:
        """Give the left edge of a panel."""
        return MARGIN + index * (PANEL_WIDTH + GAP)

    @property
    def core_rows(self) -> int:
        """Give the rows of cores of the largest node."""
        return max((-(-len(node.cores) // CORES_A_ROW) for node in self.nodes), default=1) or 1

    @property
    def memory_top(self) -> int:
        """Give the upper edge of the memory boxes."""
        return 86 + self.core_rows * CORE_STEP + ARROW_HEIGHT


def plan_picture(plan: Mapping[str, Any], topology: Mapping[str, Any]) -> str:
    """Give the SVG of a plan document on the machine of a topology document."""
    drawing = _drawing(plan, topology)
    width = drawing.x(len(drawing.nodes)) - GAP + MARGIN
    height = drawing.memory_top + MEMORY_HEIGHT + 96
    return "\n".join([*_opening(drawing, width, height), *_body(drawing, height), "</svg>", ""])


def _drawing(plan: Mapping[str, Any], topology: Mapping[str, Any]) -> Drawing:
    workers = {w["cpu_id"]: w["slice_index"] for w in plan["layout"]["workers"] if w["cpu_id"] is not None}
    memory = plan["process_memory"]
    arena_bytes = sum(part["size_bytes"] for part in plan["arena_slices"])
    nodes = ", ".join(map(str, memory["node_ids"]))
    everything_else = {
        "default": "first touch",
        "preferred": f"node {nodes} preferred",
        "interleave": f"nodes {nodes}",
    }
    return Drawing(
        nodes=tuple(_node(int(name), node, plan, topology) for name, node in topology["nodes"].items()),
        slice_of_cpu=workers,
        host_cpus=frozenset(plan["layout"]["host_cpu_ids"]),
        title=f"{plan['policy']}: {count_of(len(workers), 'worker')}, "
        f"{count_of(len(plan['arena_slices']), 'slice')}, {format_bytes(arena_bytes)} of {plan['arena_scope']}",
        caption=f"everything else in memory ({memory['mode']}): {everything_else[memory['mode']]}",
    )


def _node(
    node_id: int, node: Mapping[str, Any], plan: Mapping[str, Any], topology: Mapping[str, Any]
) -> NodeDrawing:
    cpus = set(parse_id_list(node["cpus"] or "") or ())
    cores = (parse_id_list(core) or () for core in topology["cores"])
    held: dict[int, int] = {}
    for part in plan["arena_slices"]:
        if node_id in part["node_ids"]:
            held[part["slice_index"]] = part["size_bytes"] // len(part["node_ids"])
    kibibytes = node.get("mem_total_kib")
    return NodeDrawing(
        node_id=node_id,
        cores=tuple(core[0] for core in cores if core and core[0] in cpus),
        memory_bytes=None if kibibytes is None else kibibytes * 1024,
        slice_bytes=held,
        gpus=tuple(gpu["busid"] for gpu in topology["accelerators"] if gpu["node"] == node_id),
    )


def _opening(drawing: Drawing, width: int, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" role="img">'
    )
    yield f"<title>{escape(drawing.title)}</title>"
    yield "<defs>"
    heads = [(*_marker(index), 3.5) for index in range(len(SLICE_COLOURS))]
    for name, colour, head in (*heads, ("remote", REMOTE_COLOUR, 5)):
        yield (
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="{head}" '
            f'markerHeight="{head}" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
        )
    yield "</defs>"
    yield f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>'


def _marker(slice_index: int) -> tuple[str, str]:
    return f"slice{slice_index}", SLICE_COLOURS[slice_index]


def _colour(slice_index: int) -> str:
    return SLICE_COLOURS[slice_index % len(SLICE_COLOURS)]


def _body(drawing: Drawing, height: int) -> Iterator[str]:
    yield _text(MARGIN, 32, drawing.title, size=16, weight="bold")
    for index, node in enumerate(drawing.nodes):
        yield from _panel(drawing, node, index)
    yield from _arrows(drawing)
    yield from _legend(drawing, height)


def _panel(drawing: Drawing, node: NodeDrawing, index: int) -> Iterator[str]:
    x = drawing.x(index)
    bottom = drawing.memory_top + MEMORY_HEIGHT + 10
    yield f'<rect x="{x - 10}" y="46" width="{PANEL_WIDTH + 20}" height="{bottom - 46}" rx="8" fill="{PALE}"/>'
    gpu = f" with {count_of(len(node.gpus), 'GPU')}" if node.gpus else ""
    yield _text(x, 68, f"node {node.node_id}{gpu}", weight="bold")
    for place, cpu in enumerate(node.cores):
        yield from _core(
            drawing, cpu, x + place % CORES_A_ROW * CORE_STEP, 80 + place // CORES_A_ROW * CORE_STEP
        )
    yield from _memory(drawing, node, x)


def _core(drawing: Drawing, cpu: int, x: int, y: int) -> Iterator[str]:
    slice_index = drawing.slice_of_cpu.get(cpu)
    fill = "#ffffff" if slice_index is None else _colour(slice_index)
    if slice_index is None and cpu in drawing.host_cpus:
        fill = LINE
    ink = INK if fill in ("#ffffff", LINE) else "#ffffff"
    yield f'<rect x="{x}" y="{y}" width="{CORE}" height="{CORE}" rx="4" fill="{fill}" stroke="{LINE}"/>'
    yield _text(x + CORE // 2, y + 16, str(cpu), size=10, fill=ink, anchor="middle")


def _memory(drawing: Drawing, node: NodeDrawing, x: int) -> Iterator[str]:
    top, total = drawing.memory_top, node.memory_bytes
    size = f'width="{PANEL_WIDTH}" height="{MEMORY_HEIGHT}"'
    yield f'<rect x="{x}" y="{top}" {size} rx="5" fill="#ffffff" stroke="{LINE}"/>'
    y = top
    for slice_index, size_bytes in sorted(node.slice_bytes.items()):
        share = size_bytes / total if total else 1 / max(1, len(node.slice_bytes))
        # A slice too small to see still has room for its name.
        part = max(20, round(MEMORY_HEIGHT * min(1.0, share)))
        yield f'<rect x="{x}" y="{y}" width="{PANEL_WIDTH}" height="{part}" rx="5" fill="{_colour(slice_index)}"/>'
        yield _text(
            x + 8, y + 15, f"slice {slice_index}: {format_bytes(size_bytes)}", size=12, fill="#ffffff"
        )
        y += part
    label = "memory" if total is None else f"memory: {format_bytes(total)}"
    yield _text(x + 8, top + MEMORY_HEIGHT - 8, label, size=12)


def _arrows(drawing: Drawing) -> Iterator[str]:
    top, bottom = 84 + drawing.core_rows * CORE_STEP, drawing.memory_top - 4
    for reader_index, reader in enumerate(drawing.nodes):
        slices = sorted({drawing.slice_of_cpu[cpu] for cpu in reader.cores if cpu in drawing.slice_of_cpu})
        for slice_index in slices:
            for memory_index, memory in enumerate(drawing.nodes):
                if slice_index in memory.slice_bytes:
                    ends = (
                        _end(drawing, reader_index, memory_index),
                        _end(drawing, memory_index, reader_index),
                    )
                    yield _arrow(ends, (top, bottom), slice_index, is_local=reader_index == memory_index)


def _end(drawing: Drawing, index: int, other_index: int) -> int:
    """Give where an arrow touches a panel: in the middle for its own memory, to the side for another's."""
    middle = drawing.x(index) + PANEL_WIDTH // 2
    return middle + (other_index > index) * 60 - (other_index < index) * 60


def _arrow(ends: tuple[int, int], heights: tuple[int, int], slice_index: int, *, is_local: bool) -> str:
    colour = _colour(slice_index) if is_local else REMOTE_COLOUR
    marker = f"slice{slice_index % len(SLICE_COLOURS)}" if is_local else "remote"
    style = 'stroke-width="5"' if is_local else 'stroke-width="2.5" stroke-dasharray="7 4"'
    return (
        f'<line x1="{ends[0]}" y1="{heights[0]}" x2="{ends[1]}" y2="{heights[1]}" stroke="{colour}" {style} '
        f'marker-end="url(#{marker})"/>'
    )


def _legend(drawing: Drawing, height: int) -> Iterator[str]:
    yield _text(MARGIN, height - 62, drawing.caption, size=12)
    words = (
        "coloured core: worker of that slice; grey: server; white: not used",
        "solid arrow: reads its own node; dashed: reads over a link",
    )
    for line, text in enumerate(words):
        yield _text(MARGIN, height - 40 + 18 * line, text, size=11, fill="#52606d")


def _text(
    x: int,
    y: int,
    text: str,
    *,
    size: int = 13,
    fill: str = INK,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def main(arguments: list[str]) -> int:
    """Write the picture of two documents to standard output; exit status 2 when they are not named."""
    if len(arguments) != 2:
        sys.stderr.write(
            "usage: python -m stratad.documents.pictures PLAN.json TOPOLOGY.json > picture.svg\n"
        )
        return 2
    plan, topology = (json.loads(Path(name).read_text(encoding="utf-8")) for name in arguments)
    sys.stdout.write(plan_picture(plan, topology))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
