"""Set-up on a machine that lacks things: one clear line, nothing half done."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BOOTSTRAP = Path(__file__).resolve().parents[2] / "packaging" / "bootstrap"


def bare_path(folder: Path, *programs: str) -> str:
    """A PATH that holds these programs of the machine and no other."""
    folder.mkdir()
    for program in programs:
        found = shutil.which(program)
        assert found is not None
        (folder / program).symlink_to(found)
    return str(folder)


def system_packages(path: str, python: str) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh")
    assert shell is not None
    return subprocess.run(
        [shell, str(BOOTSTRAP / "system_packages.sh"), python],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_compiler_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    python = tmp_path / "good-python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    outcome = system_packages(bare_path(tmp_path / "bin", "id"), str(python))
    assert outcome.returncode == 1
    assert outcome.stderr == "error: missing system packages; run: sudo apt-get install g++ gcc\n"


def test_a_missing_python_is_named_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    outcome = system_packages(bare_path(tmp_path / "bin", "id", "cc", "c++"), "no-such-python")
    assert outcome.returncode == 1
    assert "sudo apt-get install python3 python3-dev python3-venv" in outcome.stderr


def test_a_python_that_is_too_old_is_refused_with_the_way_out(tmp_path: Path) -> None:
    python = tmp_path / "old-python"
    python.write_text('#!/bin/sh\ncase "$2" in *version_info*) exit 1;; *) echo 3.9.2;; esac\n')
    python.chmod(0o755)
    outcome = system_packages(bare_path(tmp_path / "bin", "id"), str(python))
    assert outcome.returncode == 1
    assert "needs Python 3.11 or newer" in outcome.stderr
    assert "is 3.9.2" in outcome.stderr
    assert "make PYTHON=" in outcome.stderr


def test_nothing_is_said_where_nothing_is_missing(tmp_path: Path) -> None:
    python = tmp_path / "good-python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    outcome = system_packages(bare_path(tmp_path / "bin", "id", "cc", "c++"), str(python))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


def test_programs_that_only_tests_need_are_left_out_with_a_line_each_and_no_error(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    # An `id` that is not root, and no apt: nothing can be had.
    path = bare_path(tmp_path / "bin", "mkdir", "rm")
    (tmp_path / "bin" / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "bin" / "id").chmod(0o755)
    outcome = subprocess.run(
        [shell, str(BOOTSTRAP / "test_packages.sh")],
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stdout) == (0, "")
    notes = outcome.stderr.splitlines()
    # nginx may be installed where no PATH is asked.
    packages = [note.split()[1] for note in notes if "nginx" not in note]
    assert packages == ["chromium", "openssl", "curl", "groff-base", "mandoc", "debhelper"]
    assert all("left out" in note for note in notes)


@pytest.fixture
def fetch_llama() -> ModuleType:
    specification = importlib.util.spec_from_file_location("fetch_llama", BOOTSTRAP / "fetch_llama.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def archive_of(folder: Path, prefix: str, names: tuple[str, ...]) -> Path:
    archive = folder / "source.tar.gz"
    with tarfile.open(archive, "w:gz") as package:
        for name in names:
            member = tarfile.TarInfo(prefix + name)
            member.size = len(name)
            package.addfile(member, io.BytesIO(name.encode()))
    return archive


def test_only_what_the_build_needs_is_unpacked(fetch_llama: ModuleType, tmp_path: Path) -> None:
    names = (
        "CMakeLists.txt",
        "src/llama.cpp",
        "ggml/src/ggml.c",
        "models/big.gguf",
        "src/../../escape",
        "tests/x.cpp",
    )
    target = tmp_path / "llama"
    fetch_llama.unpack(archive_of(tmp_path, fetch_llama.PREFIX, names), target)
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {"CMakeLists.txt", "src/llama.cpp", "ggml/src/ggml.c"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "source.tar.gz"]


def test_an_archive_without_the_source_leaves_nothing_behind(fetch_llama: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(fetch_llama.FetchError, match="holds no llama"):
        fetch_llama.unpack(archive_of(tmp_path, "something-else/", ("CMakeLists.txt",)), tmp_path / "llama")
    assert [path.name for path in tmp_path.iterdir()] == ["source.tar.gz"]


def test_a_download_with_another_checksum_is_deleted_and_refused(
    fetch_llama: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        (tmp_path / fetch_llama.ARCHIVE_NAME).write_bytes(b"not the source")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(fetch_llama.subprocess, "run", download)
    with pytest.raises(fetch_llama.FetchError, match=r"has sha256 \w+, expected"):
        fetch_llama.download(tmp_path)
    assert not (tmp_path / fetch_llama.ARCHIVE_NAME).exists()


def test_a_failed_build_shows_the_end_of_its_log_and_where_it_is(tmp_path: Path) -> None:
    """A source folder that is none: CMake's own words reach the user."""
    shutil.copytree(
        BOOTSTRAP.parent.parent, tmp_path / "tree", ignore=shutil.ignore_patterns(".venv", "build", ".git")
    )
    outcome = subprocess.run(
        [sys.executable, str(tmp_path / "tree" / "packaging" / "bootstrap" / "build.py"), str(tmp_path)],
        env={**os.environ, "PIP_TARGET": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode != 0
    assert "STRATAD_LLAMA_SOURCE does not name a llama.cpp source tree" in outcome.stderr
    assert "build/setup.log" in outcome.stderr


def gpu_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_module", BOOTSTRAP / "gpu_module.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up.
    sys.modules["gpu_module"] = module
    spec.loader.exec_module(module)
    return module


def bus(folder: Path, *devices: tuple[str, str, str]) -> Path:
    for index, identity in enumerate(devices):
        device = folder / f"0000:0{index}:00.0"
        device.mkdir(parents=True)
        for name, value in zip(("class", "vendor", "device"), identity, strict=True):
            (device / name).write_text(f"{value}\n")
    return folder


NVIDIA, AMD = ("0x030200", "0x10de", "0x2330"), ("0x030000", "0x1002", "0x744c")
INTEL, INTEGRATED = ("0x038000", "0x8086", "0x56c0"), ("0x030000", "0x8086", "0x3e98")
# The last is of AMD's vendor number and computes nothing.
BOARD, OLD_BOARD = ("0x030000", "0x1a03", "0x2000"), ("0x030000", "0x1002", "0x515e")


def test_backends_fit_the_gpus_on_the_bus(tmp_path: Path) -> None:
    module = gpu_module()
    assert module.gpus_on_bus(tmp_path / "none") == ()
    assert module.gpus_on_bus(bus(tmp_path / "plain", INTEGRATED, BOARD, OLD_BOARD)) == ()
    assert module.gpus_on_bus(bus(tmp_path / "three", INTEL, AMD, NVIDIA)) == ("cuda", "hip", "vulkan")


def toolkits(module: ModuleType, *complete: str) -> None:
    module.TOOLKITS = {
        name: lambda _, name=name: module.Toolkit(name, () if name in complete else ("part",), "install it")
        for name in ("cuda", "hip", "vulkan")
    }


def test_what_is_built_by_itself_needs_a_gpu_and_its_toolkit(tmp_path: Path) -> None:
    module = gpu_module()
    empty, nvidia = bus(tmp_path / "empty", BOARD), bus(tmp_path / "nvidia", NVIDIA)
    toolkits(module, "cuda", "vulkan")
    assert module.choose("detect", {}, empty) == (None, "")
    assert module.choose("detect", {}, nvidia) == ("cuda", "")
    toolkits(module, "vulkan")
    assert module.choose("detect", {}, nvidia) == ("vulkan", "")
    toolkits(module)
    name, remark = module.choose("detect", {}, nvidia)
    assert name is None
    assert "GPU=cuda needs part; install it" in remark


def test_what_was_asked_for_is_built_or_refused_in_one_line(tmp_path: Path) -> None:
    module = gpu_module()
    empty = bus(tmp_path / "empty", BOARD)
    toolkits(module, "hip")
    assert module.choose("hip", {}, empty) == ("hip", "")
    assert module.choose("none", {}, bus(tmp_path / "nvidia", NVIDIA)) == (None, "")
    with pytest.raises(module.BuildError, match=r"^GPU=cuda needs part; install it$"):
        module.choose("cuda", {}, empty)


def test_toolkits_name_the_packages_that_are_missing(tmp_path: Path) -> None:
    module = gpu_module()
    nowhere = {"PATH": str(tmp_path), "ROCM_PATH": str(tmp_path), "VULKAN_SDK": str(tmp_path)}
    module.CUDA_ROOTS = ()
    assert module.cuda_toolkit(nowhere).missing[0] == "nvcc"
    assert "nvidia-cuda-toolkit" in module.cuda_toolkit(nowhere).sentence()
    hip = module.hip_toolkit(nowhere)
    assert hip.missing == ("hip", "hipblas", "rocblas")
    assert "librocblas-dev" in hip.sentence()
    assert "glslc" in module.vulkan_toolkit(nowhere).missing


@pytest.mark.parametrize(
    ("version", "missing"), [("5.2.21153", ("hip 6.1 (here is 5.2.21153)",)), ("6.1.40091", ()), ("7.0", ())]
)
def test_a_rocm_that_upstream_refuses_is_told_before_compiling(
    version: str, missing: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("hip", "hipblas", "rocblas"):
        (tmp_path / "lib" / "cmake" / name).mkdir(parents=True)
    file = tmp_path / "lib" / "cmake" / "hip" / "hip-config-version.cmake"
    file.write_text(f'set(PACKAGE_VERSION "{version}")\n')
    toolkit = gpu_module().hip_toolkit({"ROCM_PATH": str(tmp_path)})
    assert toolkit.missing == missing
    assert toolkit.is_complete == (not missing)


def test_a_script_called_nvcc_is_no_toolkit(tmp_path: Path) -> None:
    module = gpu_module()
    module.CUDA_ROOTS = (str(tmp_path / "real"),)
    for root in ("script", "real"):
        (tmp_path / root / "bin").mkdir(parents=True)
        (tmp_path / root / "bin" / "nvcc").write_text("#!/bin/sh\n")
        (tmp_path / root / "bin" / "nvcc").chmod(0o755)
    environment = {"PATH": str(tmp_path / "script" / "bin")}
    assert module.cuda_root(environment) is None
    (tmp_path / "real" / "include").mkdir()
    (tmp_path / "real" / "include" / "cuda_runtime.h").write_text("")
    assert module.cuda_root(environment) == tmp_path / "real"
    assert module.cuda_root({"PATH": "", "CUDA_HOME": str(tmp_path / "real")}) == tmp_path / "real"
