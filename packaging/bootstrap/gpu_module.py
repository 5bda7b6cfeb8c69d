"""Builds a GPU backend of ggml as a loadable module and puts it where the daemon looks for it.

The module is compiled from the pinned source in a build directory of its own (build/gpu/NAME) and nothing of the rest
depends on it: the same installation runs on machines with and without a GPU. `detect` builds what the GPUs on this
machine's bus and the toolkits here allow, and nothing where either is missing.

usage: gpu_module.py LLAMA_SOURCE detect|cuda|hip|vulkan|none [--cuda-architectures LIST] [--check | --build-only]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PCI_DEVICES = Path("/sys/bus/pci/devices")
SHOWN_TAIL_LINES = 40
# Display and processing classes that are GPUs when their vendor makes any.
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
IDENTITY = ("class", "vendor", "device")
VENDORS = {"0x10de": "cuda", "0x1002": "hip"}
# What upstream's CMake project asks for.
OLDEST_HIP = (6, 1)
CUDA_ROOTS = ("/usr/local/cuda", "/usr/lib/cuda", "/opt/cuda")


class BuildError(Exception):
    """Something the user can act on."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What a backend needs to be compiled: a part's name, whether it is here, and who brings it."""

    name: str
    missing: tuple[str, ...]
    remedy: str

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def sentence(self) -> str:
        """One line for a toolkit that is not complete."""
        return f"GPU={self.name} needs {', '.join(self.missing)}; {self.remedy}"


def cuda_root(environment: Mapping[str, str]) -> Path | None:
    """The toolkit's folder: what the environment names, what nvcc lies in, or the usual places."""
    named = (
        environment.get("CUDAToolkit_ROOT") or environment.get("CUDA_PATH") or environment.get("CUDA_HOME")
    )
    compiler = shutil.which("nvcc", path=environment.get("PATH"))
    places = [Path(named)] if named else []
    places += [Path(compiler).resolve().parents[1]] if compiler else []
    places += [Path(place) for place in CUDA_ROOTS]
    return next((place for place in places if _is_cuda_root(place)), None)


def cublas_wheel(environment: Mapping[str, str]) -> Path | None:
    """The folder with include/ and lib/ of the `nvidia-cublas` wheel, in this Python or the one on the path."""
    found = [
        *_site_packages(sys.executable),
        *_site_packages(shutil.which("python3", path=environment.get("PATH"))),
    ]
    folders = (place / part for place in found for part in ("nvidia/cu13", "nvidia/cublas"))
    return next((folder for folder in folders if any((folder / "lib").glob("libcublas.so.*"))), None)


def cuda_toolkit(environment: Mapping[str, str]) -> Toolkit:
    """The CUDA toolkit: compiler, runtime and cuBLAS with headers."""
    root = cuda_root(environment)
    wanted: dict[str, Callable[[], bool]] = {
        "nvcc": lambda: root is not None,
        "cudart": lambda: _has_library(root, "cudart", environment),
        "cublas": lambda: _has_library(root, "cublas", environment) or cublas_wheel(environment) is not None,
    }
    remedy = (
        "install the CUDA toolkit (Debian and Ubuntu: nvidia-cuda-toolkit; NVIDIA's repository: cuda-nvcc, "
        "cuda-cudart-dev, libcublas-dev; cuBLAS alone also as pip's nvidia-cublas), or build with GPU=vulkan "
        "or GPU=none"
    )
    return Toolkit("cuda", _missing(wanted), remedy)


def hip_toolkit(environment: Mapping[str, str]) -> Toolkit:
    """ROCm: the HIP compiler with its CMake packages for hip, hipBLAS and rocBLAS."""
    roots = (
        [Path(environment["ROCM_PATH"])]
        if environment.get("ROCM_PATH")
        else [Path("/opt/rocm"), Path("/usr")]
    )

    def package(name: str) -> Path | None:
        folders = ("lib/cmake", "lib64/cmake", "lib/x86_64-linux-gnu/cmake")
        places = (root / folder / name for root in roots for folder in folders)
        return next((place for place in places if place.is_dir()), None)

    wanted: dict[str, Callable[[], bool]] = {
        name: lambda part=name: package(part) is not None for name in ("hip", "hipblas", "rocblas")
    }
    hip = package("hip")
    version = None if hip is None else _package_version(hip)
    if version is not None:
        oldest = ".".join(map(str, OLDEST_HIP))
        wanted[f"hip {oldest} (here is {'.'.join(map(str, version))})"] = lambda: version >= OLDEST_HIP
    remedy = (
        "install ROCm 6.1 or newer (AMD's repository: rocm-hip-sdk; Debian and Ubuntu, where new enough: hipcc "
        "libamdhip64-dev libhipblas-dev librocblas-dev), or build with GPU=vulkan or GPU=none"
    )
    return Toolkit("hip", _missing(wanted), remedy)


def vulkan_toolkit(environment: Mapping[str, str]) -> Toolkit:
    """Vulkan's loader and headers, a shader compiler, and the SPIR-V headers' CMake package."""
    prefixes = [Path(environment["VULKAN_SDK"])] if environment.get("VULKAN_SDK") else []
    prefixes += [Path("/usr"), Path("/usr/local")]
    packages = ("share/cmake", "lib/cmake", "lib/x86_64-linux-gnu/cmake")
    wanted: dict[str, Callable[[], bool]] = {
        "vulkan.hpp": lambda: any((place / "include/vulkan/vulkan.hpp").exists() for place in prefixes),
        "glslc": lambda: shutil.which("glslc", path=environment.get("PATH")) is not None,
        "SPIRV-Headers": lambda: any(
            (place / folder / "SPIRV-Headers").is_dir() for place in prefixes for folder in packages
        ),
    }
    remedy = "install libvulkan-dev glslc spirv-headers (apt-get install), or build with GPU=none"
    return Toolkit("vulkan", _missing(wanted), remedy)


TOOLKITS: Mapping[str, Callable[[Mapping[str, str]], Toolkit]] = {
    "cuda": cuda_toolkit,
    "hip": hip_toolkit,
    "vulkan": vulkan_toolkit,
}


def gpus_on_bus(devices: Path = PCI_DEVICES) -> tuple[str, ...]:
    """The backends that fit the GPUs on the PCI bus, best first; Intel's cards run with Vulkan."""
    from planner.accelerators import BOARD_VGA_DEVICES

    found = set()
    for device in sorted(devices.iterdir()) if devices.is_dir() else ():
        try:
            pci_class, vendor, number = ((device / name).read_text().strip() for name in IDENTITY)
        except OSError:
            continue
        if (vendor, number) in BOARD_VGA_DEVICES:
            continue
        if vendor in VENDORS and pci_class[:6] in GPU_CLASSES:
            found.add(VENDORS[vendor])
        elif vendor == "0x8086" and pci_class[:6] in GPU_CLASSES[1:]:
            found.add("vulkan")
    return tuple(name for name in TOOLKITS if name in found)


def choose(
    wanted: str, environment: Mapping[str, str], devices: Path = PCI_DEVICES
) -> tuple[str | None, str]:
    """The backend to build, or None, and a line that says why (empty when there is nothing to say).

    Raises:
        BuildError: A backend was asked for by name and its toolkit is not complete.
    """
    if wanted == "none":
        return None, ""
    if wanted in TOOLKITS:
        toolkit = TOOLKITS[wanted](environment)
        if not toolkit.is_complete:
            raise BuildError(toolkit.sentence())
        return wanted, ""
    fitting = gpus_on_bus(devices)
    candidates = (*fitting, "vulkan") if fitting else ()
    toolkits = [TOOLKITS[name](environment) for name in dict.fromkeys(candidates)]
    ready = next((toolkit.name for toolkit in toolkits if toolkit.is_complete), None)
    if ready is None and toolkits:
        return None, f"a GPU is here and nothing was built for it: {toolkits[0].sentence()}"
    return ready, ""


def build(name: str, source: Path, architectures: str, folder: Path) -> Path:
    """The compiled module.

    Raises:
        BuildError: It does not compile; the end of the output is shown.
    """
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    configure = ["cmake", "-S", str(ROOT / "native"), "--preset", name, "-B", str(folder)]
    configure += [f"-DSTRATAD_LLAMA_SOURCE={source}"]
    root = cuda_root(environment) if name == "cuda" else None
    if root is not None:
        configure += [f"-DCUDA_ARCHITECTURES={architectures}", f"-DCMAKE_CUDA_COMPILER={root}/bin/nvcc"]
        configure += [f"-DCUDAToolkit_ROOT={root}"]
        wheel = None if _has_library(root, "cublas", environment) else cublas_wheel(environment)
        configure += [] if wheel is None else [f"-DSTRATAD_CUBLAS={wheel}"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{name}.log"
    with log.open("w", encoding="utf-8") as output:
        for command in (configure, ["cmake", "--build", str(folder)]):
            outcome = subprocess.run(
                command,
                cwd=ROOT / "native",
                env=environment,
                check=False,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            if outcome.returncode != 0:
                tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_TAIL_LINES:]
                raise BuildError(
                    "\n".join((f"the {name} module does not compile:", *tail, f"all of it: {log}"))
                )
    return folder / "module" / f"libggml-{name}.so"


def modules_folder() -> Path:
    """Where the installed package looks for modules."""
    from stratad.gpu import modules as gpu_modules

    folder = gpu_modules.modules_folder()
    if folder is None:
        raise BuildError("stratad is not installed in this environment; run `make setup` first")
    return folder


def install(module: Path, folder: Path) -> None:
    """Puts a module where the daemon looks, whole or not at all: a daemon may be reading the folder."""
    folder.mkdir(exist_ok=True)
    shutil.copy2(module, folder / f".{module.name}")
    (folder / f".{module.name}").replace(folder / module.name)
    print(f"installed {module.name}")


def main() -> int:
    """Exit status 1 with one line on stderr when a backend cannot be built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("gpu", choices=("detect", *TOOLKITS, "none"))
    parser.add_argument("--cuda-architectures", default="native", help="default: the GPU that is here")
    parser.add_argument("--check", action="store_true", help="only say what would be built")
    parser.add_argument("--build-only", action="store_true", help="compile and install nothing")
    arguments = parser.parse_args()
    try:
        name, remark = choose(arguments.gpu, os.environ)
        if remark:
            print(remark)
        if arguments.check:
            print(name or "none")
        elif name is not None:
            print(
                f"compiling ggml's {name} backend, output in build/gpu/{name}.log (several minutes the first time)"
            )
            module = build(
                name, arguments.source, arguments.cuda_architectures, ROOT / "build" / "gpu" / name
            )
            if not arguments.build_only:
                install(module, modules_folder())
        elif arguments.gpu == "none":
            for module in sorted(modules_folder().glob("libggml-*.so")):
                module.unlink()
                print(f"removed {module.name}")
    except (BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _is_cuda_root(place: Path) -> bool:
    """A compiler with its headers: a script called nvcc elsewhere on the path is none."""
    return (place / "bin" / "nvcc").exists() and (place / "include" / "cuda_runtime.h").exists()


def _site_packages(python: str | None) -> list[Path]:
    if python is None:
        return []
    script = "import site; print(*site.getsitepackages(), site.getusersitepackages(), sep='\\n')"
    outcome = subprocess.run([python, "-c", script], check=False, capture_output=True, text=True)
    return [Path(line) for line in outcome.stdout.splitlines()]


def _missing(wanted: Mapping[str, Callable[[], bool]]) -> tuple[str, ...]:
    return tuple(name for name, is_here in wanted.items() if not is_here())


def _package_version(folder: Path) -> tuple[int, ...] | None:
    """What a CMake package says its version is; None when it does not."""
    for file in sorted(folder.glob("*-config-version.cmake")):
        text = file.read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"PACKAGE_VERSION\s+\"?(\d+(?:\.\d+)*)", text):
            return tuple(int(part) for part in found[1].split("."))
    return None


def _has_library(root: Path | None, name: str, environment: Mapping[str, str]) -> bool:
    """Whether lib<name>.so can be linked: in the toolkit's folder, or where the system's linker looks."""
    folders = ("lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu")
    places = [root / folder for folder in folders] if root is not None else []
    places += [Path("/usr/lib/x86_64-linux-gnu")]
    places += [Path(folder) for folder in environment.get("LIBRARY_PATH", "").split(os.pathsep) if folder]
    return any((place / f"lib{name}.so").exists() for place in places)


if __name__ == "__main__":
    sys.exit(main())
