from __future__ import annotations

import ast
import sys
import types
from pathlib import Path

import planner
from planner.reason import REASON_CODES

PACKAGE = Path(planner.__file__).parent
# What opens, lists or stats files, or asks for the time, chance or surroundings.
IMPURE_CALLS = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "iterdir",
    "glob",
    "exists",
    "stat",
    "listdir",
    "getenv",
}
IMPURE_MODULES = {"os", "time", "random", "datetime", "secrets", "uuid", "socket", "subprocess"}


def test_the_listed_names_are_exactly_the_public_ones() -> None:
    found = {
        name
        for name in dir(planner)
        if not name.startswith("_") and not isinstance(getattr(planner, name), types.ModuleType)
    } - {"TYPE_CHECKING", "annotations"}
    assert found == set(planner.__all__)
    assert len(planner.__all__) == len(set(planner.__all__))


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    return names


def test_the_planner_imports_the_standard_library_only() -> None:
    allowed = set(sys.stdlib_module_names) | {"planner"}
    for path in PACKAGE.glob("*.py"):
        assert imported_modules(path) <= allowed, path.name


def test_only_sysfs_touches_files_and_nothing_reads_clock_or_chance() -> None:
    for path in PACKAGE.glob("*.py"):
        if path.name == "sysfs.py":
            continue
        assert not imported_modules(path) & IMPURE_MODULES, path.name
        calls = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        }
        assert not calls & IMPURE_CALLS, path.name


def test_every_reason_code_is_used_by_the_planner_or_the_daemon() -> None:
    files = [*PACKAGE.glob("*.py"), *(PACKAGE.parent / "stratad").rglob("*.py")]
    source = "".join(path.read_text() for path in files if path.name != "reason.py")
    unused = {code for code in REASON_CODES if f'"{code}"' not in source}
    assert unused == set()


def test_codes_are_in_alphabetical_order() -> None:
    assert list(REASON_CODES) == sorted(REASON_CODES)
