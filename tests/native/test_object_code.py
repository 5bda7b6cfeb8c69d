"""What the compiler made of the folders with flags of their own: nothing of theirs may be run on a lesser CPU."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.native_build import ROOT

OBJECTS = ROOT / "build" / "native" / "CMakeFiles" / "stratad-core.dir"
TILE_INSTRUCTIONS = {"ldtilecfg", "tilezero", "tileloadd", "tdpbsud", "tilestored", "tilerelease"}
# Where the personality of C++ exceptions is found: data, the same in every file.
SHARED_DATA = "DW.ref.__gxx_personality_v0"


def objects(folder: str) -> list[Path]:
    found = sorted((OBJECTS / folder).rglob("*.o"))
    assert found, f"no compiled files in {folder}"
    return found


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def mnemonics(compiled: Path) -> set[str]:
    listing = output_of("objdump", "--disassemble", "--no-show-raw-insn", str(compiled))
    return set(re.findall(r"^ *[0-9a-f]+:\s+(\S+)", listing, re.MULTILINE))


def offered(compiled: Path) -> set[str]:
    """Names that other files' code can be linked to."""
    names = output_of("nm", "--demangle", "--defined-only", "--extern-only", str(compiled))
    return {line.split(" ", 2)[2] for line in names.splitlines()} - {SHARED_DATA}


@pytest.mark.parametrize("folder", ["kernels/avx2", "kernels/avx512", "kernels/amx"])
def test_nothing_but_kernels_can_be_entered_from_other_files(folder: str) -> None:
    for compiled in objects(folder):
        assert all(re.match(r"(void )?stratad::", name) for name in offered(compiled)), compiled


def test_tile_instructions_are_in_the_tile_kernels_and_nowhere_else() -> None:
    assert set().union(*map(mnemonics, objects("kernels/amx"))) >= TILE_INSTRUCTIONS
    for compiled in objects("."):
        if "amx" not in compiled.parts:
            assert not [
                name for name in mnemonics(compiled) if name in TILE_INSTRUCTIONS or name.startswith("tdp")
            ]


def test_tile_kernels_are_entered_through_the_table_and_the_check_alone() -> None:
    entries = set().union(*map(offered, objects("kernels/amx")))
    assert {name.partition("<")[0].partition("(")[0] for name in entries} == {
        "void stratad::multiply_by_tiles",
        "stratad::are_tile_products_right",
    }
    users = {
        str(compiled.relative_to(OBJECTS))
        for compiled in objects(".")
        if "amx" not in compiled.parts
        and re.search(
            r"multiply_by_tiles|are_tile_products_right", output_of("nm", "--demangle", str(compiled))
        )
    }
    assert users == {"kernels/avx512/table.cpp.o", "kernels/tiles.cpp.o"}
