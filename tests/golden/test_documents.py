"""Documents made from code: docs/REASONS.md, docs/DOCTOR.md, docs/CONFIGURATION.md, the man pages, the
pictures of plans, the tables of docs/PLANNER.md, and the plan's JSON Schema.

`pytest tests/golden --update-golden` writes them anew; review the diff.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from planner import REASON_CODES, CostConstants
from planner.hardware import GENERATION_ROWS, GIGABYTE
from stratad.cli.output import terminal_report
from stratad.doctor import CHECKS, examine, report_text
from stratad.doctor.document import doctor_document
from stratad.documents.configuration import configuration_document
from stratad.documents.manual import stratactl_page, stratad_page
from stratad.documents.pictures import plan_picture
from stratad.plan.schema import plan_schema
from tests.support.arm_cases import load_cases
from tests.support.arm_scores import judgements, scores, table
from tests.support.doctor_machine import changed, healthy
from tests.support.pictured_plans import PLANS, documents

DOCS = Path(__file__).resolve().parents[2] / "docs"
CONSTANT_NOTES = {
    "norm_power": ("", "fitted, weak: 2 to 8"),
    "same_package_factor": ("", "assumed"),
    "remote_factor": ("", "fitted, at its lower bound; idle latency ratios are 1.6 to 1.7 (MLC)"),
    "base_seconds": ("us a layer", "fitted, undetermined: 20 to 150"),
    "local_seconds": ("us a worker and phase", "a two-thread barrier takes 0.19 to 0.26 us"),
    "cross_seconds": ("us a layer", "fitted on seed 3413: 5 to 120"),
    "wake_seconds": ("us a layer", "fitted; the wake call itself takes 1.2 us"),
    "claim_seconds": ("us", "fitted, 0.1 to 1.5; four transfers of a dirty line across packages"),
    "tasks_per_worker": ("a phase", "seed 3708: 60 tasks for 20 threads"),
    "phase_count": ("", "gate and up, then down"),
    "gpu_rest_seconds_per_layer": ("us", "fitted, x0.6 to x1.5"),
    "large_model_rest_factor": ("", "from about 110 GB of experts on"),
    "cpu_rest_share": ("", "fitted, at a bound: 0.05 to 0.3"),
    "host_to_gpu_rate": ("GB/s", "PCIe 3.0 x16: 11.6 to 12.8 measured"),
    "host_to_gpu_remote_factor": ("", "1.08 (seed 3708-c) to 3.2 (pub-gearshifft-82)"),
    "oversubscribed_factor": ("", "2 to 2900 measured: right in direction only"),
    "needed_gain": ("", "a candidate must gain more than this over the safe one"),
}


def reasons_document() -> str:
    lines = [
        "# Reasons",
        "",
        "Generated from `planner/reason.py` by `pytest tests/golden --update-golden`; do not edit.",
        "",
        "Every choice, refusal and warning carries one of these codes: in the journal, in `stratactl plan`, in",
        "the metric `stratad_plan_reason` and on the status page. `stratactl explain CODE` shows one row.",
        "",
        "| code | what it means | what to do |",
        "|---|---|---|",
    ]
    rows = (
        f"| `{code}` | {escaped(row.meaning)} | {escaped(row.action) or '-'} |"
        for code, row in REASON_CODES.items()
    )
    return "\n".join([*lines, *rows]) + "\n"


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def constants_table() -> str:
    lines = ["| constant | default | note |", "|---|---|---|"]
    for field in dataclasses.fields(CostConstants):
        unit, note = CONSTANT_NOTES[field.name]
        value = getattr(CostConstants(), field.name)
        scale = 1e6 if unit.startswith("us") else 1 / GIGABYTE if unit == "GB/s" else 1
        shown = f"{value * scale:g} {unit}".strip()
        lines.append(f"| `{field.name}` | {shown} | {note} |")
    return "\n".join(lines)


def machines_table() -> str:
    lines = [
        "| CPU | channels a package | MT/s | share | link GB/s | one core GB/s | doubt | basis |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {generation} | {row.channels_per_package} | {row.megatransfers} | {row.channel_share:.2f} "
        f"| {row.link_bandwidth / GIGABYTE:g} | {row.core_rate / GIGABYTE:g} | {row.uncertainty:.0%} | {row.basis} |"
        for generation, row in GENERATION_ROWS.items()
    ]
    return "\n".join(lines)


@functools.cache
def validation_text() -> str:
    items = judgements(load_cases())
    lines = ["| | choice | ranking | pairs in order | median error of a ratio |", "|---|---|---|---|---|"]
    for name, group in (("seeds", "seed"), ("open cases", "open")):
        found = scores(item for item in items if item.case.group == group)
        lines.append(
            f"| {name} | {found['choice']} | {found['ranking']} | {found['pairs']} | {found['median error']} |"
        )
    return "\n".join([*lines, "", table(items)])


def planner_document() -> str:
    text = (DOCS / "PLANNER.md").read_text()
    blocks = {"constants": constants_table(), "machines": machines_table(), "validation": validation_text()}
    for name, block in blocks.items():
        text = with_block(text, name, block)
    return text


def troubleshooting_document() -> str:
    """The page with what the doctor says of a machine that hides memory in huge pages and lost a part of its link."""
    pool = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB"
    with tempfile.TemporaryDirectory() as name:
        case = healthy(Path(name) / "planned")
        files = changed(case.files, {f"{pool}/nr_hugepages": "12000", f"{pool}/free_hugepages": "12000"})
        log = "mce: UPI: COR Phy Lane Failure, recovery in x8 width"
        facts = replace(case, files=files, live=replace(case.live, error_log=log)).facts(
            Path(name) / "machine"
        )
    report = terminal_report(report_text(examine(facts), facts.topology), 100, has_colour=False)
    return with_block((DOCS / "TROUBLESHOOTING.md").read_text(), "example", f"```text\n{report}```")


def with_block(text: str, name: str, block: str) -> str:
    """The text with the one generated block of this name made anew."""
    pattern = re.compile(rf"<!-- generated: {name} -->\n.*?<!-- end -->", re.DOTALL)
    assert len(pattern.findall(text)) == 1, name
    return pattern.sub(lambda _: f"<!-- generated: {name} -->\n{block}\n<!-- end -->", text)


def picture(name: str) -> str:
    plan, topology = documents(name)
    return plan_picture(json.loads(plan), json.loads(topology))


def schema_document() -> str:
    return json.dumps(plan_schema(), indent=2) + "\n"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("REASONS.md", reasons_document),
        ("PLANNER.md", planner_document),
        ("plan.schema.json", schema_document),
        ("DOCTOR.md", doctor_document),
        ("CONFIGURATION.md", configuration_document),
        ("TROUBLESHOOTING.md", troubleshooting_document),
        ("man/stratactl.1", stratactl_page),
        ("man/stratad.8", stratad_page),
        *((f"pictures/{name}.svg", functools.partial(picture, name)) for name in PLANS),
    ],
)
def test_the_document_says_what_the_code_does(
    name: str, make: object, request: pytest.FixtureRequest
) -> None:
    assert callable(make)
    text, path = make(), DOCS / name
    if request.config.getoption("--update-golden", default=False):
        path.write_text(text)
    assert path.read_text() == text, "run `pytest tests/golden --update-golden` and review the diff"


def test_every_finding_points_into_the_document() -> None:
    headings = {
        line.removeprefix("### ") for line in doctor_document().splitlines() if line.startswith("### ")
    }
    assert [check.documentation for check in CHECKS] == [f"docs/DOCTOR.md#{check.code}" for check in CHECKS]
    assert headings == {check.code for check in CHECKS}


def test_every_constant_has_a_note_and_every_reason_that_stops_or_warns_has_a_way_out() -> None:
    assert set(CONSTANT_NOTES) == {field.name for field in dataclasses.fields(CostConstants)}
    informs = {
        "arena-holds-weights",
        "arena-pinned",
        "arena-pinning-unsupported",
        "arena-scope-requested",
        "cpu-share-measured",
        "expert-profile-ignored",
        "gpu-cache",
        "gpu-layers-assigned",
        "gpu-node-preferred",
        "gpu-prefill-threshold",
        "gpu-used",
        "most-local-feasible",
        "no-experts",
        "placement-repaired",
        "policy-excluded",
        "policy-requested",
        "prompt-at-gpu",
        "saved-prompts-restored",
        "single-node-machine",
        "tuned-winner",
        "workers-rounded",
    }
    assert {code for code, row in REASON_CODES.items() if not row.action} == informs


def test_the_validation_scores_meet_their_bars() -> None:
    """The words in the document are the ones the tests of the arms ask for."""
    text = validation_text()
    assert "| seeds | 10 of 10 | 9 of 10 |" in text
    assert "| open cases | 10 of 11 | 16 of 19 |" in text
