"""`make gpu-check`: the hybrid path on a real GPU, unattended and within minutes; a report and an exit status.

Builds ggml's CUDA module for the GPU that is here, or takes one (`MODULE=...`); checks where the GPU is, that the arena
is pinned, that every path gives the CPUs' logits within tolerance, and that the cache is hit; then decode and prefill
of our arms against llama.cpp's own offload with the experts in host memory, interleaved, on one synthetic model.
`DEVICE=vulkan` walks through the same steps on the software device: for the script's sake, its speeds mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stratad.gpu.modules import modules_folder
from tests.gpu import software_vulkan
from tests.gpu.hybrid_report import MOST_BEYOND, TOLERANCE
from tests.support.native_build import llama_source

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build" / "gpu-check.json"
# Nobody looks on: a GPU that hangs is to end the check. A software device takes the longest, under load.
STEP_LIMIT_SECONDS = 900
# A re-executed process already has the software device's environment.
IS_PREPARED = "STRATAD_GPU_CHECK_PREPARED"


class CheckFailed(Exception):
    """A step cannot go on; the message says what to do."""


def say(step: str, text: str) -> None:
    """One line of the report."""
    print(f"{step:<10}{text}", flush=True)


def module_for(device: str, named: Path | None, architectures: str) -> Path:
    """The module to load: the named one, or compiled now.

    Raises:
        CheckFailed: There is none and it cannot be compiled here.
    """
    if named is not None:
        if not named.exists():
            raise CheckFailed(f"there is no module {named}")
        return named
    folder = modules_folder()
    installed = None if folder is None else folder / f"libggml-{device}.so"
    if installed is not None and installed.exists():
        return installed
    say("build", f"compiling ggml's {device} backend for {architectures}")
    start = time.monotonic()
    command = [
        sys.executable,
        str(ROOT / "packaging" / "bootstrap" / "gpu_module.py"),
        llama_source(),
        device,
    ]
    command += ["--cuda-architectures", architectures, "--build-only"]
    outcome = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if outcome.returncode != 0:
        words = outcome.stderr.strip().removeprefix("error: ")
        raise CheckFailed(f"{words}\nor name a compiled module: make gpu-check MODULE=libggml-{device}.so")
    say("build", f"{time.monotonic() - start:.0f} s")
    return ROOT / "build" / "gpu" / device / "module" / f"libggml-{device}.so"


def describe_machine() -> None:
    """What the numbers below are of."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    say(
        "machine",
        f"{processor[1] if processor else 'unknown CPU'}, {len(os.sched_getaffinity(0))} CPUs for us",
    )
    query = ["nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current"]
    try:
        outcome = subprocess.run(
            [*query, "--format=csv,noheader"], check=False, capture_output=True, text=True
        )
    except FileNotFoundError:
        return
    for line in outcome.stdout.splitlines():
        say("machine", f"{line} (name, driver, link generation, link width)")


def report_of(command: list[str]) -> dict[str, object]:
    """The JSON line that a step prints last. Raises CheckFailed with what it said when it fails."""
    try:
        outcome = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=STEP_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(
            f"{command[0]} did not end within {STEP_LIMIT_SECONDS} s: the GPU may hang"
        ) from error
    if outcome.returncode != 0:
        tail = "\n".join((outcome.stdout + outcome.stderr).splitlines()[-15:])
        raise CheckFailed(f"{command[0]} ended with status {outcome.returncode}:\n{tail}")
    found: dict[str, object] = json.loads(outcome.stdout.splitlines()[-1])
    return found


def judge(problems: list[str], is_good: bool, step: str, text: str) -> None:
    """Shows one result and remembers it when it is none to be content with."""
    say(step, text + ("" if is_good else "  FAILED"))
    if not is_good:
        problems.append(f"{step}: {text}")


def check_paths(found: dict[str, object], device: str, problems: list[str]) -> None:
    """Locality, pinning and equality, from hybrid_report."""
    is_real = device != "vulkan"
    judge(problems, not is_real or found["pci_address"] is not None, "locality", str(found["location"]))
    pinning = found["pinning"]
    judge(problems, not is_real or pinning == ["arena-pinned"], "pinning", ", ".join(map(str, pinning)))  # type: ignore[call-overload]
    for expert_type, paths in found["paths"].items():  # type: ignore[attr-defined]
        for name, path in paths.items():
            beyond = sum(difference > TOLERANCE for difference in path["differences"])
            is_near = path["median_difference"] <= TOLERANCE / 2
            is_near = is_near and beyond <= MOST_BEYOND * len(path["differences"])
            is_near = is_near and path["clear_choices_that_differ"] == 0
            median = f"{expert_type} {name}: median {path['median_difference']:.4f} of the largest logit"
            judge(problems, is_near, "equality", f"{median}, {beyond} positions beyond {TOLERANCE}")


def show_speeds(speeds: dict[str, object], problems: list[str]) -> None:
    """The table of arms, the rates from host memory, and what was hit."""
    say("model", str(speeds["model"]))
    say("arm", f"{'':28}{'decode t/s':>12}{'prefill t/s':>13}{'cache hits':>12}   over plain offload")
    base = next(arm for arm in speeds["arms"] if arm["name"] == "llama.cpp offload")  # type: ignore[attr-defined]
    for arm in speeds["arms"]:  # type: ignore[attr-defined]
        hits = "" if arm["hit_ratio"] is None else f"{arm['hit_ratio']:.0%}"
        ratio = f"{arm['decode'] / base['decode']:.2f} decode, {arm['prefill'] / base['prefill']:.2f} prefill"
        say("", f"{arm['name']:28}{arm['decode']:>12.1f}{arm['prefill']:>13.0f}{hits:>12}   {ratio}")
        if arm["is_cached"]:
            judge(problems, (arm["hit_ratio"] or 0) > 0, "cache", f"{arm['name']}: {hits or 'no'} hits")
    for rate in speeds["copy_rates"]:  # type: ignore[attr-defined]
        how = "pinned" if rate["is_pinned"] else "not pinned"
        say("upload", f"slice {rate['slice_index']}: {rate['bytes_per_second'] / 1e9:.1f} GB/s, {how}")
    if speeds["hint"]:
        say("hint", str(speeds["hint"]))


def run(arguments: argparse.Namespace) -> list[str]:
    """Every step; what was found wrong."""
    problems: list[str] = []
    describe_machine()
    module = module_for(arguments.device, arguments.module, arguments.cuda_architectures)
    paths = report_of(["tests.gpu.hybrid_report", "--module", str(module)])
    check_paths(paths, arguments.device, problems)
    with tempfile.TemporaryDirectory() as folder:
        command = ["tests.gpu.speeds", "--module", str(module), "--folder", folder]
        speeds = report_of([*command, *(["--small"] if arguments.device == "vulkan" else [])])
    show_speeds(speeds, problems)
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"paths": paths, "speeds": speeds, "problems": problems}, indent=2) + "\n")
    say("report", f"{REPORT.relative_to(ROOT)}; raw rows for docs/BENCHMARKS.md")
    return problems


def main() -> int:
    """Exit status 1 when a step failed or could not be done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "hip", "vulkan"), default="cuda")
    parser.add_argument("--module", type=Path)
    parser.add_argument("--cuda-architectures", default="native")
    arguments = parser.parse_args()
    if arguments.device == "vulkan" and IS_PREPARED not in os.environ:
        if software_vulkan.driver() is None:
            print("error: no software Vulkan driver; run `make test-vulkan` first", file=sys.stderr)
            return 1
        environment = {**software_vulkan.software_environment(), IS_PREPARED: "1"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.gpu.check", *sys.argv[1:]], environment)
    start = time.monotonic()
    try:
        problems = run(arguments)
    except CheckFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say("result", f"{len(problems)} problems in {time.monotonic() - start:.0f} s")
    if arguments.device == "vulkan":
        say("note", "a software device: these speeds mean nothing")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
