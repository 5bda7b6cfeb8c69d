"""The invariants of docs/ARCHITECTURE.md that a reader relies on: who may import what, and what is absent."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON_FILES = sorted([*(ROOT / "planner").rglob("*.py"), *(ROOT / "stratad").rglob("*.py")])
NATIVE_FILES = sorted(
    path for path in (ROOT / "native").rglob("*") if path.suffix in {".hpp", ".cpp"} and path.is_file()
)


def imported_modules(path: Path) -> set[str]:
    """Every module the file imports anywhere, late imports included."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return modules


def called_names(path: Path) -> set[str]:
    """Names of everything called in the file: `f()` and the last part of `a.f()`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                names.add(node.func.id)
            elif isinstance(node.func, ast.Attribute):
                names.add(node.func.attr)
    return names


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [p for p in PYTHON_FILES if p.parts[-2] == "planner"], ids=name_of)
def test_the_planner_knows_the_standard_library_and_itself_only(path: Path) -> None:
    import sys

    for module in imported_modules(path):
        top = module.split(".")[0]
        assert top == "planner" or top in sys.stdlib_module_names, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", [p for p in PYTHON_FILES if p.parts[-2] == "planner"], ids=name_of)
def test_the_planner_reads_no_clock_and_draws_no_lots(path: Path) -> None:
    forbidden = {"time", "datetime", "random", "secrets", "uuid", "os.environ", "os.getenv"}
    assert not imported_modules(path) & forbidden


def test_only_sysfs_opens_files_in_the_planner() -> None:
    opening = {"open", "read_text", "read_bytes", "iterdir", "glob", "rglob", "scandir", "listdir", "exists"}
    for path in PYTHON_FILES:
        if path.parts[-2] == "planner" and path.name != "sysfs.py":
            assert not called_names(path) & opening, name_of(path)


def test_the_doctors_checks_read_nothing() -> None:
    """Facts in, finding out: only its readers and its questions to the live machine see files or processes."""
    seeing = {"Tree", "MachineFiles", "subprocess", "pathlib.Path", "stratad.native"}
    for path in PYTHON_FILES:
        if path.parent.name == "doctor" and path.name.endswith("_checks.py"):
            used = imported_modules(path)
            assert not {module for module in used if module.split(".")[-1] in seeing or module in seeing}, (
                name_of(path)
            )


def test_only_few_files_import_the_native_module() -> None:
    users = {name_of(path) for path in PYTHON_FILES if "stratad._native" in imported_modules(path)}
    assert users == {
        "stratad/bench/gpu_copies.py",
        "stratad/bench/native_probe.py",
        "stratad/gpu/offload.py",
        "stratad/gpu/runtime.py",
        "stratad/native/apply.py",
        "stratad/native/chat.py",
        "stratad/native/runner.py",
    }


def test_the_environment_is_read_in_the_configuration_only() -> None:
    readers = set()
    for path in PYTHON_FILES:
        text = path.read_text(encoding="utf-8")
        if re.search(r"\bos\.(environ|getenv)\b", text):
            readers.add(name_of(path))
    # The second asks what the terminal can show (NO_COLOR, TERM) and is no setting of ours.
    assert readers == {"stratad/config/environment.py", "stratad/cli/output.py"}


# For everybody: they import nothing of ours but each other.
LEAVES = {"errors", "journal", "replaced_file", "version", "watch"}


def table_of_layers() -> dict[str, set[str]]:
    """The table in docs/ARCHITECTURE.md, top first: package or module -> what it may import, besides itself."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Layers")[2].partition("In C++")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", table, re.MULTILINE)
    names = [name for name, _ in rows]
    layers = {}
    for index, (name, allowed) in enumerate(rows):
        named = set(re.findall(r"`(\w+)`", allowed))
        below = {*names[index + 1 :], "planner"}
        assert named <= below, f"{name} may import only what stands below it: {named - below}"
        if allowed.startswith("everything below"):
            layers[name] = below - named
        else:
            layers[name] = named | LEAVES if name not in LEAVES else below & LEAVES
    return layers


LAYERS = table_of_layers()


def test_the_table_of_layers_has_every_package() -> None:
    entries = {
        path.stem
        for path in (ROOT / "stratad").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(LAYERS) == entries - {"__init__"}


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_imports_point_down(layer: str) -> None:
    place = ROOT / "stratad" / layer
    for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
        used = {
            module.removeprefix("stratad.").split(".")[0]
            for module in imported_modules(path)
            if is_ours(module)
        }
        assert used <= LAYERS[layer] | {layer, "_native"}, f"{name_of(path)}: {used - LAYERS[layer]}"


def is_ours(module: str) -> bool:
    """Whether it is a module or a name of `stratad` or `planner`; `stratad` itself holds nothing."""
    return module.startswith("stratad.") or module.split(".", maxsplit=1)[0] == "planner"


def test_no_module_imports_itself_in_a_circle() -> None:
    by_name = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PYTHON_FILES
    }
    graph = {name: (imported_modules(path) & set(by_name)) - {name} for name, path in by_name.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises a CycleError that names the circle


def test_judging_and_concluding_touch_no_machine() -> None:
    """What decides is pure: no clock, no file, no process, no native side."""
    pure = ["bench/cases.py", "bench/conclude.py", "bench/results.py", "tune/judge.py", "tune/statistics.py"]
    for name in pure:
        path = ROOT / "stratad" / name
        forbidden = {"time", "os", "pathlib", "subprocess", "socket", "stratad._native"}
        assert not imported_modules(path) & forbidden, name
        assert "open" not in called_names(path), name


def test_only_the_bindings_include_pybind11() -> None:
    for path in NATIVE_FILES:
        if path.parent.name != "bindings":
            assert "pybind11" not in path.read_text(encoding="utf-8"), name_of(path)


def test_the_pool_knows_no_topology_and_no_model() -> None:
    for path in NATIVE_FILES:
        if path.parent.name == "pool":
            includes = re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))
            assert set(includes) <= {
                "pool/pool.hpp",
                "pool/worker_layout.hpp",
                "placement/thread_affinity.hpp",
            }


def test_no_native_file_reads_sysfs_or_the_environment() -> None:
    for path in NATIVE_FILES:
        text = path.read_text(encoding="utf-8")
        assert "getenv" not in text, name_of(path)
        assert "/sys/" not in text.replace("#include <sys/", ""), name_of(path)
        assert "/proc/" not in text, name_of(path)


def test_threads_are_started_in_the_pool_and_for_uploads_only() -> None:
    for path in NATIVE_FILES:
        if path.parent.name != "pool" and path.stem != "uploader":
            assert not re.search(r"std::(jthread|thread|async)\b", path.read_text(encoding="utf-8")), name_of(
                path
            )


def tracked_text_files() -> list[Path]:
    outcome = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False, text=True)
    if outcome.returncode != 0:
        pytest.skip("not a git checkout: the search for absolute paths is left out")
    return [
        ROOT / name
        for name in outcome.stdout.split("\0")
        if name
        and Path(name).suffix in {".py", ".pyi", ".md", ".toml", ".cpp", ".hpp", ".txt", ".sh", ".json", ""}
    ]


def test_nothing_names_a_place_on_somebodys_machine() -> None:
    home = re.compile(r"(?<![\w./~-])/(?:Users|root|work)/\w")
    for path in tracked_text_files():
        if path.is_file() and path.stat().st_size < 1 << 20:
            found = home.search(path.read_text(encoding="utf-8", errors="replace"))
            assert not found, f"{name_of(path)}: {found and found[0]}"


def test_source_files_stay_readable_in_one_sitting() -> None:
    """STYLE: past 400 lines of Python or 500 of C++ a file wants splitting."""
    for path in PYTHON_FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, name_of(path)
    for path in NATIVE_FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 500, name_of(path)
