"""Builds what the lab boots: a Debian kernel, a root file system with systemd, and a disk with stratad on it.

Everything lies in the user's cache directory and is built once; a change to its recipe builds it anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import runpy
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).parent / "guest"
PACKAGE = ROOT / "packaging" / "debian"

# Where the guest finds the disk with stratad; the virtual environment's scripts name this path.
INSTALLATION = "/opt/stratad"

_HOST_PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "lz4": "lz4",
    "depmod": "kmod",
    "dpkg-deb": "dpkg",
}
_GUEST_PACKAGES = (
    "systemd,systemd-sysv,dbus,udev,python3,python3-venv,procps,util-linux,kmod,iproute2,libgomp1,numactl"
)
# The cloud kernel has NVMe, ext4 and the serial console built in; these the lab loads.
_MODULES = (
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/char/virtio_console",
)
_MASKED_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-timesyncd.service",
    "getty@tty1.service",
    "getty-static.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "systemd-random-seed.service",
    "systemd-pstore.service",
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
    "systemd-hwdb-update.service",
    "systemd-boot-update.service",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "dev-hvc0.device",
    "serial-getty@ttyS0.service",
)
_ROOT_MEBIBYTES = 1000


# The lab's exit status when the host cannot run it.
UNAVAILABLE_STATUS = 3


class LabUnavailable(Exception):
    """The lab cannot run here; the message is the one line that says what to do."""


def cache_directory() -> Path:
    """Where images lie: below XDG_CACHE_HOME, else below ~/.cache."""
    directory = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratad" / "lab"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def lab_lock() -> Iterator[None]:
    """One lab at a time builds or boots."""
    with (cache_directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Of a lab that was killed.
        for folder in cache_directory().glob("vm-*"):
            shutil.rmtree(folder)
        yield


def require_host() -> None:
    """Installs the missing programs as root; otherwise says in one line which to install.

    Raises:
        LabUnavailable: The host lacks something that cannot be installed from here.
    """
    if sys.version_info[:2] != (3, 11) or 'VERSION_ID="12"' not in Path("/etc/os-release").read_text():
        raise LabUnavailable("the lab's guest is Debian 12 with Python 3.11, and needs a host with both")
    missing = sorted(
        {package for program, package in _HOST_PACKAGES.items() if shutil.which(program) is None}
    )
    if not missing:
        return
    if os.getuid() != 0:
        raise LabUnavailable(f"missing packages; run: sudo apt-get install {' '.join(missing)}")
    print(f"installing system packages: {' '.join(missing)}", flush=True)
    _run(["apt-get", "update", "-qq"])
    _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing])


def kernel() -> Path:
    """The uncompressed kernel, which QEMU boots without the guest having to decompress it."""
    directory = cache_directory() / "kernel"
    image = directory / "vmlinux"
    if not image.exists():
        print("lab: fetching the kernel", flush=True)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        depends = _output(["apt-cache", "depends", "linux-image-cloud-amd64"])
        package = next(line.split()[-1] for line in depends.splitlines() if "Depends:" in line)
        _run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package], directory)
        _run(["dpkg-deb", "-x", str(next(directory.glob("*.deb"))), "x"], directory)
        compressed = next((directory / "x" / "boot").glob("vmlinuz-*")).read_bytes()
        partial = directory / "vmlinux.partial"
        partial.write_bytes(_payload(compressed))
        partial.rename(image)
    return image


def _payload(image: bytes) -> bytes:
    """The ELF file inside a bzImage. Source: Documentation/arch/x86/boot.rst, payload_offset."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(setup_sectors + 1) * 512 + offset :][:length]
    if payload.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(payload)
    programs = {b"\x02\x21\x4c\x18": "lz4", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
    program = next(name for magic, name in programs.items() if payload.startswith(magic))
    # The payload ends with its size, which the programs call trailing garbage: the ELF header tells the truth.
    unpacked = subprocess.run([program, "-dcq"], input=payload, capture_output=True, check=False).stdout
    assert unpacked.startswith(b"\x7fELF"), f"the {program} payload of the kernel cannot be unpacked"
    return unpacked


def root_image() -> Path:
    """The root file system: Debian 12 with systemd, the lab's agent and a few kernel modules."""
    kernel()
    parts = [_GUEST_PACKAGES, str(_MODULES), str(_MASKED_UNITS), Path(__file__).read_text()]
    parts += [path.read_text() for path in sorted(GUEST.iterdir()) if path.is_file()]
    image = cache_directory() / f"root-{_digest(*parts)}.ext4"
    if not image.exists():
        for former in cache_directory().glob("root-*.ext4"):
            former.unlink()
        tree = _debian_tree()
        _dress(tree)
        _pack(tree, image, _ROOT_MEBIBYTES, "labroot")
    return image


def overlay(base: Path, folder: Path) -> Path:
    """A disk in `folder` with everything on `base`, which keeps what is written to it to itself."""
    disk = folder / "disk.qcow2"
    _run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(base), str(disk)])
    return disk


def _debian_tree() -> Path:
    tree = cache_directory() / f"debian-{_digest(_GUEST_PACKAGES)}"
    if not tree.exists():
        print("lab: building the root file system", flush=True)
        partial = tree.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        sources = Path("/etc/apt/sources.list.d/debian.sources")
        paths = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale")]
        command = ["mmdebstrap", "--variant=minbase", f"--include={_GUEST_PACKAGES}", *paths]
        command += ['--aptopt=Acquire::Languages "none"', "bookworm", str(partial)]
        _run([*command, *([str(sources)] if sources.exists() else [])])
        partial.rename(tree)
    return tree


def _dress(tree: Path) -> None:
    """Makes a fresh Debian tree the lab's: modules, masked units, agent."""
    source = next((cache_directory() / "kernel" / "x" / "lib" / "modules").iterdir())
    modules = tree / "usr/lib/modules"
    shutil.rmtree(modules, ignore_errors=True)
    target = modules / source.name
    target.mkdir(parents=True)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(source / name, target)
    for module in _MODULES:
        file = source / "kernel" / f"{module}.ko"
        (target / "kernel" / module).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, (target / "kernel" / module).parent)
    _run(["depmod", "-b", str(tree), source.name])
    (tree / "etc/hostname").write_text("lab\n")
    (tree / "etc/fstab").write_text("")
    # A fixed id: no first-boot pass.
    (tree / "etc/machine-id").write_text("00000000000000000000000000001ab0\n")
    units = tree / "etc/systemd/system"
    for unit in _MASKED_UNITS:
        _link(units / unit, "/dev/null")
    journal = tree / "etc/systemd/journald.conf.d"
    journal.mkdir(exist_ok=True)
    (journal / "lab.conf").write_text("[Journal]\nStorage=volatile\nForwardToConsole=no\n")
    shutil.copy(GUEST / "lab-agent.service", units)
    shutil.copy(GUEST / "lab.target", units)
    (tree / "usr/local/lib/lab").mkdir(parents=True, exist_ok=True)
    shutil.copy(GUEST / "agent.py", tree / "usr/local/lib/lab")
    _link(units / "default.target", "lab.target")
    (tree / INSTALLATION.lstrip("/")).mkdir(parents=True, exist_ok=True)


def installation_image() -> Path:
    """A disk with a virtual environment at INSTALLATION: stratad for the AVX2 baseline and what it imports."""
    image = cache_directory() / f"stratad-{_sources_digest()}.ext4"
    if not image.exists():
        print("lab: packing stratad", flush=True)
        for former in cache_directory().glob("stratad-*.ext4"):
            former.unlink()
        tree = cache_directory() / "installation"
        shutil.rmtree(tree, ignore_errors=True)
        _virtual_environment(tree, _baseline_wheel())
        mebibytes = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 2**20
        _pack(tree, image, mebibytes * 5 // 4 + 32, "labopt")
    return image


def model_image() -> Path:
    """A disk with a model whose experts take 408 MiB: more than a small node has, less than two of them."""
    # Imported late: quantising needs the native module, which only this model's builder does.
    from tests.support.gguf_models import ModelShape, write_model

    shape = ModelShape(embedding=1024, expert_hidden=1024, expert_count=64, experts_used=2)
    image = cache_directory() / f"model-{_digest(repr(shape))}.ext4"
    if not image.exists():
        print("lab: writing the large model", flush=True)
        with tempfile.TemporaryDirectory(dir=cache_directory()) as name:
            model = write_model(Path(name) / "large.gguf", shape=shape, vocabulary="bytes")
            _pack(Path(name), image, model.stat().st_size // 2**20 + 64, "labmodel")
    return image


def package_image() -> Path:
    """A disk with the Debian package of this checkout."""
    parts = [_sources_digest(), *(path.read_text() for path in sorted(PACKAGE.iterdir()) if path.is_file())]
    image = cache_directory() / f"package-{_digest(*parts)}.ext4"
    if not image.exists():
        print("lab: building the Debian package", flush=True)
        for former in cache_directory().glob("package-*.ext4"):
            former.unlink()
        with tempfile.TemporaryDirectory(dir=cache_directory()) as name:
            _run([sys.executable, str(PACKAGE / "build.py"), str(cache_directory()), name])
            package = next(Path(name).glob("*.deb"))
            _pack(Path(name), image, package.stat().st_size // 2**20 + 32, "labpackage")
    return image


def _sources_digest() -> str:
    """A name for what goes into the installation: this checkout's Python, native and unit files."""
    folders = ("stratad", "planner", "native", "packaging/systemd", "packaging/requirements")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    kept = [path for path in paths if "__pycache__" not in path.parts]
    return _digest(*(path.read_text(errors="replace") for path in [*kept, ROOT / "pyproject.toml"]))


def _baseline_wheel() -> Path:
    """The wheel with the native module for AVX2: the guest's CPU has no AVX-512.

    Its Python files may be older than the checkout's; the native module is not.
    """
    sources = [path for path in sorted((ROOT / "native").rglob("*")) if path.is_file()]
    sources += [ROOT / "pyproject.toml", ROOT / "packaging/bootstrap/fetch_llama.py"]
    directory = (
        cache_directory() / f"native-{_digest(*(path.read_text(errors='replace') for path in sources))}"
    )
    if not directory.exists():
        print("lab: compiling stratad for the AVX2 baseline", flush=True)
        for former in cache_directory().glob("native-*"):
            shutil.rmtree(former)
        wheel = _package_builder()["baseline_wheel"](cache_directory())
        partial = cache_directory() / "native.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        shutil.copy(wheel, partial)
        partial.rename(directory)
    return next(directory.glob("*.whl"))


def _package_builder() -> dict[str, Any]:
    """The functions of packaging/debian/build.py, which is a script and in no package."""
    return runpy.run_path(str(PACKAGE / "build.py"))


def _virtual_environment(tree: Path, wheel: Path) -> None:
    """What `python3 -m venv` and pip would leave at INSTALLATION in the guest."""
    packages = tree / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    wheelhouse = _package_builder()["wheelhouse"](cache_directory())
    wheels = [str(path) for path in sorted(wheelhouse.iterdir())]
    _run([*command, "--no-deps", "--target", str(packages), str(wheel), *wheels])
    shutil.rmtree(packages / "bin", ignore_errors=True)
    for name in ("stratad", "planner"):
        shutil.copytree(
            ROOT / name, packages / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.so*")
        )
    _run([sys.executable, "-m", "compileall", "-q", str(packages / "stratad"), str(packages / "planner")])
    scripts = tree / "bin"
    scripts.mkdir()
    _link(scripts / "python3", "/usr/bin/python3")
    for name, module in (("stratad", "stratad.daemon.main"), ("stratactl", "stratad.cli.main")):
        script = scripts / name
        script.write_text(
            f"#!{INSTALLATION}/bin/python3\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n"
        )
        script.chmod(0o755)
    (tree / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n"
    )
    shutil.copytree(ROOT / "packaging/systemd", packages / "stratad/share/systemd", dirs_exist_ok=True)
    shutil.copytree(ROOT / "etc/demo", tree / "share/stratad/demo", ignore=shutil.ignore_patterns("*.py"))


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _pack(tree: Path, image: Path, mebibytes: int, label: str) -> None:
    """Writes a tree into an ext4 file, without loop devices or mounts."""
    partial = image.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    command = ["mke2fs", "-q", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-L", label]
    _run([*command, "-d", str(tree), str(partial), f"{mebibytes}M"])
    partial.rename(image)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _run(command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None) -> None:
    variables = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", **(environment or {})}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabUnavailable(
            f"{' '.join(command[:4])} ... failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
