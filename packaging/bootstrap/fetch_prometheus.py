"""Fetches Debian's or Ubuntu's `prometheus` package for the tests and unpacks it; nothing is installed.

An installed package would start a server on port 9090 and enable it for every boot, which a test has no business
to do. `apt-get download` needs no root and checks the package against the archive's signed index. Where that fails, one
line says what the tests will leave out, and the exit status is 0 all the same.

usage: fetch_prometheus.py [--cache DIR]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAMS = ("prometheus", "promtool")
LEFT_OUT = "the checks with promtool and a real Prometheus server are left out"


class FetchError(Exception):
    """Something went wrong that the user can act on."""


def default_cache() -> Path:
    """The user's cache directory, as the XDG base directory specification names it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratad"


def is_there(cache: Path) -> bool:
    """Whether both programs are on PATH or in the cache."""
    return all(shutil.which(name) or (cache / "prometheus" / name).is_file() for name in PROGRAMS)


def fetch(cache: Path) -> None:
    """Puts both programs into `cache`/prometheus. Raises FetchError."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise FetchError("this system has no apt; put `prometheus` and `promtool` on PATH")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        folder = Path(name)
        download(folder)
        package = next(folder.glob("prometheus_*.deb"), None)
        if package is None:
            raise FetchError("apt-get download gave no package")
        run(["dpkg-deb", "--extract", str(package), "unpacked"], folder)
        made = folder / "made"
        made.mkdir()
        for program in PROGRAMS:
            (folder / "unpacked" / "usr" / "bin" / program).rename(made / program)
        # Another process may have been faster; its files are as good.
        if not is_there(cache):
            made.rename(cache / "prometheus")


def download(folder: Path) -> None:
    """The package file into `folder`; root renews the index where it is missing."""
    # apt would drop its rights for the download, and its user cannot write here.
    command = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "prometheus"]
    try:
        run(command, folder)
    except FetchError:
        if os.getuid() != 0:
            raise
        run(["apt-get", "update", "-qq"], folder)
        run(command, folder)


def run(command: list[str], folder: Path) -> None:
    """One command in `folder`. Raises FetchError with what it said last."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(f"{' '.join(command)}: {said[-1] if said else done.returncode}")


def main() -> None:
    """Fetches unless both programs are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_cache())
    cache = parser.parse_args().cache
    if is_there(cache):
        return
    print("fetching Prometheus for the tests", file=sys.stderr, flush=True)
    try:
        fetch(cache)
    except (FetchError, OSError) as error:
        print(f"note: {LEFT_OUT}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
