"""Builds the Debian package from wheels that are all on this machine by then: `make deb`.

The native module is compiled for the AVX2 baseline (our own kernels choose at run time), every dependency comes from
packaging/requirements/runtime.lock with its hash, and dh-virtualenv then installs without an index.

usage: build.py WORK_FOLDER [PACKAGE_FOLDER]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LOCK = ROOT / "packaging/requirements/runtime.lock"

_PROGRAMS = {
    "dh_virtualenv": "dh-virtualenv",
    "dh": "debhelper",
    "dpkg-buildpackage": "dpkg-dev",
    "fakeroot": "fakeroot",
}
# Debian's own names for the files of packaging/systemd.
_UNIT_FILES = {
    "stratad.service": "debian/stratad.service",
    "stratad.slice": "stratad.slice",
    "stratad.sysusers.conf": "debian/stratad.sysusers",
    "stratad.tmpfiles.conf": "debian/stratad.tmpfiles",
    "stratad.toml": "stratad.toml",
}


def main() -> int:
    """Exit status; the package's path is the last line."""
    work = Path(sys.argv[1]).resolve()
    target = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT / "build" / "deb"
    if not require_programs():
        return 1
    wheel = baseline_wheel(work)
    source = source_folder(work, wheel, wheelhouse(work))
    run(["dpkg-buildpackage", "-b", "-us", "-uc", "--no-check-builddeps"], source)
    target.mkdir(parents=True, exist_ok=True)
    package = next(source.parent.glob("stratad_*.deb"))
    print(shutil.copy(package, target))
    return 0


def require_programs() -> bool:
    """Installs what is missing as root; otherwise says in one line which to install."""
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})
    if missing and os.getuid() == 0:
        print(f"installing system packages: {' '.join(missing)}", file=sys.stderr)
        run(["apt-get", "update", "-qq"], ROOT)
        run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], ROOT)
        return True
    if missing:
        print(f"error: missing packages; run: sudo apt-get install {' '.join(missing)}", file=sys.stderr)
    return not missing


def baseline_wheel(work: Path) -> Path:
    """The wheel of this checkout for AVX2; only what changed is compiled again."""
    folder = work / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    llama = subprocess.run(
        [sys.executable, str(ROOT / "packaging/bootstrap/fetch_llama.py")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    command += ["--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    # The long name: the pip of Debian 12 does not know -C yet.
    settings = {
        "build-dir": work / "build",
        "cmake.define.STRATAD_NATIVE": "OFF",
        "cmake.define.STRATAD_LLAMA_SOURCE": llama,
    }
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    run(command, ROOT)
    return next(folder.glob("stratad-*.whl"))


def wheelhouse(work: Path) -> Path:
    """The wheels of everything that stratad imports, by the lock file and its hashes; fetched once for each lock."""
    folder = work / f"wheelhouse-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
        run([*command, "--dest", str(partial), "--requirement", str(LOCK)], ROOT)
        partial.rename(folder)
    return folder


def source_folder(work: Path, wheel: Path, dependencies: Path) -> Path:
    """What dpkg-buildpackage runs in: debian/, wheels/, and the files that lie beside the environment."""
    parent = work / "deb"
    shutil.rmtree(parent, ignore_errors=True)
    source = parent / "stratad"
    shutil.copytree(HERE, source / "debian", ignore=shutil.ignore_patterns("build.py", "__pycache__"))
    (source / "debian/rules").chmod(0o755)
    (source / "wheels").mkdir()
    names = []
    for path in [wheel, *sorted(dependencies.glob("*.whl"))]:
        shutil.copy(path, source / "wheels")
        names.append("==".join(path.name.split("-")[:2]))
    (source / "requirements.txt").write_text("\n".join(names) + "\n")
    for name, place in _UNIT_FILES.items():
        shutil.copy(ROOT / "packaging/systemd" / name, source / place)
    shutil.copytree(ROOT / "docs", source / "docs")
    shutil.copy(ROOT / "README.md", source)
    (source / "demo").mkdir()
    shutil.copy(ROOT / "etc/demo/demo-moe.gguf", source / "demo")
    for name in ("prometheus", "grafana"):
        shutil.copytree(ROOT / "etc" / name, source / "monitoring" / name)
    return source


def run(command: list[str], folder: Path) -> None:
    """Runs a command quietly; its output is shown when it fails."""
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {
        "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
        **os.environ,
        "PATH": os.environ.get("PATH", os.defpath) if command[0].startswith("dpkg") else search,
        "DEBIAN_FRONTEND": "noninteractive",
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{done.stdout[-4000:]}{done.stderr[-6000:]}", file=sys.stderr)
        raise SystemExit(f"error: {' '.join(command[:4])} ... ended with status {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
