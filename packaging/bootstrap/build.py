"""Compiles the native module and installs the package into this environment, showing how far it is.

pip runs scikit-build-core in a fixed build directory (build/native), so a second run compiles what changed only and
ccache, where present, finds its entries. The whole output goes to build/setup.log; its tail is shown on failure.

usage: build.py LLAMA_SOURCE [-D NAME=VALUE ...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "build" / "setup.log"
STEP = re.compile(r"\[(\d+)/(\d+)\] (?:Building|Linking|Generating)\b.*?([^/\s]+)$")
SHOWN_TAIL_LINES = 40


def show(done: int, total: int, what: str) -> None:
    """One line that overwrites itself on a terminal; every tenth step elsewhere."""
    text = f"compiling {done}/{total} {what.removesuffix('.o')}"
    if sys.stdout.isatty():
        print(f"\r\033[K{text[:100]}", end="" if done < total else "\n", flush=True)
    elif done == total or done % 10 == 0:
        print(text, flush=True)


def main() -> int:
    """Exit status of pip."""
    source, *definitions = sys.argv[1:]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--verbose",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    command += [
        "--no-build-isolation",
        "--editable",
        str(ROOT),
        f"--config-settings=cmake.define.STRATAD_LLAMA_SOURCE={source}",
    ]
    command += [
        f"--config-settings=cmake.define.{definition.removeprefix('-D')}" for definition in definitions
    ]
    environment = {"CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))), **os.environ}
    # The environment's own cmake and ninja come first.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    LOG.parent.mkdir(exist_ok=True)
    lines: list[str] = []
    with (
        LOG.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            errors="replace",
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            lines = [*lines[-SHOWN_TAIL_LINES:], line]
            if step := STEP.search(line.strip()):
                show(int(step[1]), int(step[2]), step[3])
    if pip.returncode != 0:
        print("".join(lines), file=sys.stderr)
        print(f"error: the build failed; the whole output is in {LOG.relative_to(ROOT)}", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main())
