"""Fetches the pinned llama.cpp source and prints where it lies.

It travels inside the llama-cpp-python source package: pip downloads it, we check its sha256 ourselves and unpack
the part that the build needs. Nothing is compiled or installed here. A second run finds the cache and prints at once.

usage: fetch_llama.py [--cache DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
ARCHIVE_NAME = f"llama_cpp_python-{VERSION}.tar.gz"
# What configures and compiles by itself (docs/adr/0001-llama-cpp-as-engine.md).
NEEDED = ("CMakeLists.txt", "cmake/", "src/", "include/", "vendor/", "licenses/", "ggml/", "LICENSE")
# What reads and constrains answers (docs/adr/0031-chat-formats.md).
CHAT_SOURCE = "common/"
# And for tests: upstream's own test of every operation, which `make test-upstream` runs against our device, and the
# chat templates of the common model families.
OPERATOR_TEST = "tests/test-backend-ops.cpp"
CHAT_TEMPLATES = "models/templates/"
WANTED = (*NEEDED, CHAT_SOURCE, OPERATOR_TEST, CHAT_TEMPLATES)
PREFIX = f"llama_cpp_python-{VERSION}/vendor/llama.cpp/"


class FetchError(Exception):
    """Something went wrong that the user can act on."""


def say(text: str) -> None:
    """Progress goes to stderr: stdout carries the path."""
    print(text, file=sys.stderr, flush=True)


def default_cache() -> Path:
    """The user's cache directory, as the XDG base directory specification names it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratad"


def sha256_of(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(folder: Path) -> Path:
    """The source package in `folder`, downloaded by pip unless a good copy is there.

    `--no-build-isolation` spares pip a second environment: scikit-build-core is in ours (6 s instead of 74 s).
    """
    archive = folder / ARCHIVE_NAME
    if archive.exists() and sha256_of(archive) == SHA256:
        return archive
    say(f"fetching llama.cpp: llama-cpp-python {VERSION} source package, 77 MB")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    command += [
        "--no-build-isolation",
        "--no-binary",
        ":all:",
        "--dest",
        str(folder),
        f"llama-cpp-python=={VERSION}",
    ]
    outcome = subprocess.run(command, check=False, stdout=sys.stderr)
    if outcome.returncode != 0 or not archive.exists():
        raise FetchError(
            f"pip could not download llama-cpp-python {VERSION}; is the package index reachable?"
        )
    found = sha256_of(archive)
    if found != SHA256:
        archive.unlink()
        raise FetchError(f"{ARCHIVE_NAME} has sha256 {found}, expected {SHA256}; it was deleted, run again")
    return archive


def unpack(archive: Path, target: Path) -> None:
    """The needed part of the source in `target`, whole or not at all; where it stands already, what it lacks.

    Files are written one by one: Debian 12's Python lacks tarfile's extraction filters, and nothing but regular
    files under our prefix is wanted anyway.
    """
    say("unpacking llama.cpp: sources, 36 MB")
    scratch = Path(tempfile.mkdtemp(dir=target.parent))
    try:
        with tarfile.open(archive) as package:
            for member in package:
                relative = PurePosixPath(member.name.removeprefix(PREFIX))
                is_wanted = member.name.startswith(PREFIX) and str(relative).startswith(WANTED)
                if not is_wanted or not member.isfile() or ".." in relative.parts:
                    continue
                (scratch / relative).parent.mkdir(parents=True, exist_ok=True)
                content = package.extractfile(member)
                assert content is not None
                with content, (scratch / relative).open("wb") as file:
                    shutil.copyfileobj(content, file)
        if not (scratch / "CMakeLists.txt").exists():
            raise FetchError(f"{archive.name} holds no llama.cpp source")
        if not target.exists():
            scratch.rename(target)
            return
        # Unpacked when less was needed. What is there stays: builds may be reading it, and go by its times.
        for path in sorted(scratch.rglob("*")):
            place = target / path.relative_to(scratch)
            if path.is_file() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                path.rename(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> int:
    """Prints the source's path; exit status 1 with one line on stderr when it cannot be had."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    cache: Path = parser.parse_args().cache
    source = cache / f"llama-{VERSION}-{SHA256[:12]}"
    try:
        if not all((source / name).exists() for name in WANTED):
            cache.mkdir(parents=True, exist_ok=True)
            archive = download(cache)
            unpack(archive, source)
            archive.unlink()
    except (FetchError, OSError, tarfile.TarError) as error:
        say(f"error: fetching llama.cpp: {error}")
        return 1
    print(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
