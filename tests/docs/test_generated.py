"""What generated documents hold beyond being up to date: every setting and command, pages that typeset, pictures."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints
from xml.etree import ElementTree

import pytest

from planner import PlanRefused, make_plan, plan_to_dict, topology_to_dict
from stratad.cli.main import COMMANDS
from stratad.config import Configuration
from stratad.documents.configuration import configuration_document
from stratad.documents.manual import main as write_pages
from stratad.documents.pictures import plan_picture
from tests.golden.test_plans import CASES
from tests.support.machines import machine_topology
from tests.support.pictured_plans import PLANS, documents
from tests.support.planning import request_for

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = ("stratactl.1", "stratad.8")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    write_pages(folder)
    return folder


def test_every_setting_has_a_row_with_its_default_and_meaning() -> None:
    text = configuration_document()
    for section in dataclasses.fields(Configuration):
        block = text.split(f"## [{section.name}]\n")[1].split("\n## ")[0]
        kind = get_type_hints(Configuration)[section.name]
        for setting in dataclasses.fields(kind):
            row = re.search(rf"^\| `{setting.name}` \| (.+) \| (.+) \| (.+) \|$", block, re.MULTILINE)
            assert row is not None, setting.name
            assert len(row[3]) > 10
            assert "<class" not in row[0] and "typing" not in row[0]


def test_the_page_of_stratactl_has_every_command_and_option(pages: Path) -> None:
    text = (pages / "stratactl.1").read_text()
    for name in COMMANDS:
        assert f".SS stratactl {name.replace('-', chr(92) + '-')}" in text
        shown = subprocess.run(
            [sys.executable, "-m", "stratad.cli.main", name, "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for option in re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE):
            assert option.replace("-", "\\-") in text, (name, option)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed: pages were not typeset")
@pytest.mark.parametrize("name", PAGES)
def test_groff_sets_the_page_without_a_warning(pages: Path, name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", pages / name], capture_output=True, text=True, check=True
    )
    # A line too long to fill is a matter of the terminal's width.
    assert [
        line for line in done.stderr.splitlines() if "adjust line" not in line and "break" not in line
    ] == []
    assert "EXIT STATUS" in re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed: pages were not linted")
@pytest.mark.parametrize("name", PAGES)
def test_mandoc_finds_nothing_wrong_with_the_page(pages: Path, name: str) -> None:
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", pages / name], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == ""


def words(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{SVG}text"))


@pytest.mark.parametrize("name", PLANS)
def test_a_picture_shows_what_the_plan_says(name: str) -> None:
    plan, topology = map(json.loads, documents(name))
    svg = plan_picture(plan, topology)
    shown = [word.text or "" for word in words(svg)]
    assert shown[0].startswith(f"{plan['policy']}: {len(plan['layout']['workers'])} workers")
    assert sum(text.startswith("node ") for text in shown) == len(topology["nodes"])
    assert sum(text.startswith("slice ") for text in shown) == sum(
        len(p["node_ids"]) for p in plan["arena_slices"]
    )
    arrows = list(ElementTree.fromstring(svg).iter(f"{SVG}line"))
    remote = [arrow for arrow in arrows if arrow.get("stroke-dasharray")]
    # Only pages that are interleaved are read over a link.
    assert bool(remote) is (plan["policy"] == "interleave")
    assert len(arrows) - len(remote) == len({node for p in plan["arena_slices"] for node in p["node_ids"]})


@pytest.mark.parametrize("name", PLANS)
def test_nothing_of_a_picture_is_cut_off(name: str) -> None:
    svg = plan_picture(*map(json.loads, documents(name)))
    width = float(ElementTree.fromstring(svg).get("width", "0"))
    for word in words(svg):
        # Three fifths of its size is a wide letter of these fonts.
        length = 0.6 * float(word.get("font-size", "0")) * len(word.text or "")
        assert float(word.get("x", "0")) + length <= width, word.text


@pytest.mark.parametrize("name", CASES)
def test_every_golden_machine_can_be_drawn(name: str) -> None:
    shape, arena_gib, request = CASES[name]
    topology = machine_topology(shape)
    try:
        plan = make_plan(topology, request_for(arena_gib, **request))
    except PlanRefused:
        return
    svg = plan_picture(plan_to_dict(plan), topology_to_dict(topology))
    drawn = {word.text for word in words(svg)}
    assert {str(worker.cpu_id) for worker in plan.layout.workers if worker.cpu_id is not None} <= drawn


def test_the_command_draws_what_stratactl_writes(tmp_path: Path) -> None:
    plan, topology = documents("split")
    (tmp_path / "plan.json").write_text(plan)
    (tmp_path / "topology.json").write_text(topology)
    command = [sys.executable, "-m", "stratad.documents.pictures"]
    names = [str(tmp_path / "plan.json"), str(tmp_path / "topology.json")]
    done = subprocess.run([*command, *names], capture_output=True, text=True, check=True)
    assert done.stdout == plan_picture(json.loads(plan), json.loads(topology))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


def test_the_package_installs_every_page_and_the_documents() -> None:
    listed = (REPOSITORY / "packaging/debian/stratad.manpages").read_text().split()
    assert sorted(listed) == sorted(f"docs/man/{name}" for name in PAGES)
    assert sorted(path.name for path in (REPOSITORY / "docs/man").iterdir()) == sorted(PAGES)
    assert "docs" in (REPOSITORY / "packaging/debian/stratad.docs").read_text().split()


@pytest.mark.skipif(
    shutil.which("dh_installman") is None,
    reason="debhelper is not installed: the package's documents were not laid out",
)
def test_debhelper_puts_them_where_man_and_people_look(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "packaging/debian", tmp_path / "debian")
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs")
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    for command in (["dh_installman"], ["dh_installdocs"], ["dh_compress", "-X/docs/", "-XREADME.md"]):
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    share = tmp_path / "debian/stratad/usr/share"
    assert (share / "man/man1/stratactl.1.gz").is_file()
    assert (share / "man/man8/stratad.8.gz").is_file()
    # What findings of the doctor name.
    assert (share / "doc/stratad/docs/DOCTOR.md").is_file()
