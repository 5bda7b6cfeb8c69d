"""The invariants of docs/ARCHITECTURE.md that a reader relies on: who may import what, and what is absent."""

from __future__ import annotations

import ast
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
    seeing = {"Tree", "MachineFiles", "subprocess", "pathlib.Path", "stratad.apply"}
    for path in PYTHON_FILES:
        if path.parent.name == "doctor" and path.name.endswith("_checks.py"):
            used = imported_modules(path)
            assert not {module for module in used if module.split(".")[-1] in seeing or module in seeing}, (
                name_of(path)
            )


def test_only_few_files_import_the_native_module() -> None:
    users = {name_of(path) for path in PYTHON_FILES if "stratad._native" in imported_modules(path)}
    assert users == {
        "stratad/apply.py",
        "stratad/bench/gpu_copies.py",
        "stratad/bench/native_probe.py",
        "stratad/gpu_offload.py",
        "stratad/gpu_runtime.py",
        "stratad/native_chat.py",
        "stratad/native_runner.py",
    }


def test_the_environment_is_read_in_the_configuration_only() -> None:
    readers = set()
    for path in PYTHON_FILES:
        text = path.read_text(encoding="utf-8")
        if re.search(r"\bos\.(environ|getenv)\b", text):
            readers.add(name_of(path))
    # The second asks what the terminal can show (NO_COLOR, TERM) and is no setting of ours.
    assert readers == {"stratad/config/environment.py", "stratad/cli/output.py"}


# layer -> what it may import of ours, besides its own package; STYLE: imports point down only.
LAYERS = {
    "stratad/errors.py": set(),
    "stratad/config/__init__.py": {"stratad.config"},
    "stratad/config/environment.py": set(),
    "stratad/config/reading.py": {"stratad.config", "stratad.errors"},
    "stratad/config/sections.py": set(),
    "stratad/journal.py": {"stratad.errors"},
    "stratad/runner.py": set(),
    "stratad/verify.py": {"stratad.runner", "planner"},
    "stratad/schedule.py": set(),
    "stratad/answer_format.py": {"stratad.runner"},
    "stratad/answer_reader.py": {"stratad.answer_format", "stratad.journal"},
    "stratad/chat_template.py": set(),
    "stratad/chat_messages.py": {"stratad.answer_format", "stratad.chat_template"},
    "stratad/plain_tools.py": {"stratad.answer_format", "stratad.chat_messages", "stratad.runner"},
    "stratad/json_schema.py": set(),
    "stratad/chat.py": {
        "stratad.answer_format",
        "stratad.chat_messages",
        "stratad.chat_template",
        "stratad.plain_tools",
    },
    "stratad/slots.py": {"stratad.engine_status", "stratad.generation", "stratad.prompt", "stratad.runner"},
    "stratad/request_queue.py": {"stratad.engine_status", "stratad.generation", "stratad.waiting_line"},
    "stratad/waiting_line.py": {"stratad.generation"},
    "stratad/decoding.py": {
        "stratad.engine_status",
        "stratad.generation",
        "stratad.journal",
        "stratad.prompt_keeping",
        "stratad.request_queue",
        "stratad.runner",
        "stratad.schedule",
        "stratad.seating",
        "stratad.slots",
    },
    "stratad/prompt_cache.py": {"stratad.runner"},
    "stratad/saved_prompts.py": set(),
    "stratad/prompt_keeping.py": {
        "stratad.journal",
        "stratad.prompt_cache",
        "stratad.runner",
        "stratad.saved_prompts",
        "stratad.seating",
        "stratad.slots",
    },
    "stratad/seating.py": {"stratad.journal", "stratad.prompt_cache", "stratad.runner", "stratad.slots"},
    "stratad/engine.py": {
        "stratad.decoding",
        "stratad.engine_status",
        "stratad.generation",
        "stratad.prompt",
        "stratad.prompt_keeping",
        "stratad.request_queue",
        "stratad.runner",
    },
}


def test_the_table_of_layers_has_every_module() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Layers")[2].partition("In C++")[0]
    named = {name.removeprefix("stratad.") for name in re.findall(r"`([\w.]+)`", table)}
    modules = {
        path.stem
        for path in (ROOT / "stratad").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    # The table names the metrics by their first module.
    missing = {name for name in modules - named - {"__init__"} if not name.startswith("metrics_")}
    assert not missing, f"add them to a row: {sorted(missing)}"


def test_judging_and_concluding_touch_no_machine() -> None:
    """What decides is pure: no clock, no file, no process, no native side."""
    pure = ["bench/cases.py", "bench/conclude.py", "bench/results.py", "tune/judge.py", "tune/statistics.py"]
    for name in pure:
        path = ROOT / "stratad" / name
        forbidden = {"time", "os", "pathlib", "subprocess", "socket", "stratad._native"}
        assert not imported_modules(path) & forbidden, name
        assert "open" not in called_names(path), name


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_imports_point_down(layer: str) -> None:
    for module in imported_modules(ROOT / layer):
        if module.split(".")[0] in {"stratad", "planner"} and module != "stratad":
            assert any(module == allowed or module.startswith(f"{allowed}.") for allowed in LAYERS[layer]), (
                module
            )


def test_the_server_decides_nothing_about_machines() -> None:
    """It talks to the service; it never sees the planner, the native side or the machine."""
    for path in (ROOT / "stratad" / "server").rglob("*.py"):
        used = {".".join(module.split(".")[:2]) for module in imported_modules(path)}
        assert not used & {"stratad.apply", "stratad.startup", "stratad.daemon", "planner"}, name_of(path)


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
