"""`stratactl tune`: runs candidate policies as real, fresh starts of the engine and says which is faster."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from planner import Objective, PlanRefused, PlanRequest, Topology, make_plan
from planner.quantity import count_of
from planner.sysfs import Tree
from stratad.cli.output import json_option, print_json, print_report
from stratad.cli.progress import Progress
from stratad.config import Configuration, ModelSection, load_configuration, read_environment
from stratad.errors import DaemonError, PlanRefusedError
from stratad.gguf.model import ModelFacts, read_model_facts
from stratad.gpu.modules import is_gpu_expected
from stratad.machine.load import look_at_load, require_quiet
from stratad.plan.facts import (
    STATE_DIRECTORY,
    configured_options,
    machine_calibration,
    machine_facts,
    plan_request,
    refusal_error,
)
from stratad.plan.slot_memory import with_fitting_memory
from stratad.state.recorded import circumstances_of, require_writable, write_document
from stratad.state.runtime_directory import find_running
from stratad.systemd.control import Systemctl, system_objections
from stratad.tune.arms import (
    SPELLING_HELP,
    Arm,
    PlannedArm,
    default_arms,
    parse_arms,
    plan_arm,
    reference_of,
    require_distinct,
)
from stratad.tune.daemon_engine import DaemonEngine, PageCache, Setting, recorded_bench, recorded_profile
from stratad.tune.document import Question, tune_document
from stratad.tune.judge import Decision, Judge, Limits, Outcome, block_order
from stratad.tune.prompts import DEFAULT_ANSWER_TOKENS, read_questions
from stratad.tune.report import failures, report_lines
from stratad.tune.service_pause import service_paused

if TYPE_CHECKING:
    from planner import Calibration

DEFAULT_CONFIGURATION = Path("/etc/stratad/stratad.toml")
DEFAULT_ROUNDS = 8
DEFAULT_MINUTES = 60.0


@dataclass(frozen=True, slots=True)
class Contest:
    """The arms, the one that would run if nobody measured, and what they run."""

    arms: tuple[PlannedArm, ...]
    reference: PlannedArm
    topology: Topology
    setting: Setting

    @property
    def objective(self) -> Objective:
        """Which speed counts."""
        return Objective(self.setting.configuration.placement.objective)


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIGURATION,
    show_default=True,
    help="Configuration: its model, and everything but placement, is the same for all arms.",
)
@click.option(
    "--model", type=click.Path(path_type=Path), help="GGUF file to tune for, without a configuration."
)
@click.option("--arms", metavar="ARM,ARM,...", help=f"{SPELLING_HELP}. Default: every feasible policy.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=DEFAULT_ROUNDS,
    show_default=True,
    help="Most blocks; a block starts every arm twice. It ends sooner when every difference is clear.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=10_000),
    default=DEFAULT_MINUTES,
    show_default=True,
    help="No arm is started after this.",
)
@click.option(
    "--prompt-file", type=click.Path(path_type=Path), help="Prompts, separated by lines of three dashes."
)
@click.option(
    "--tokens",
    type=click.IntRange(2, 100_000),
    default=DEFAULT_ANSWER_TOKENS,
    show_default=True,
    help="Tokens of each answer.",
)
@click.option(
    "--page-cache",
    type=click.Choice([state.value for state in PageCache]),
    default=PageCache.DROP.value,
    show_default=True,
    help="Bring the model file's page cache into this state before every start.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="Of the bootstrap: the same trials and seed give the same intervals.",
)
@click.option(
    "--stop-service", is_flag=True, help="Stop a running stratad.service and start it again at the end."
)
@click.option("--force", is_flag=True, help="Measure although the machine is busy.")
@click.option("--dry-run", is_flag=True, help="Show the arms and the first block, and start nothing.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=STATE_DIRECTORY / "tune.json",
    show_default=True,
    help="Where to keep the results.",
)
@json_option
def tune(
    *,
    config: Path,
    model: Path | None,
    arms: str | None,
    rounds: int,
    minutes: float,
    prompt_file: Path | None,
    tokens: int,
    page_cache: str,
    seed: int,
    stop_service: bool,
    force: bool,
    dry_run: bool,
    output: Path,
    as_json: bool,
) -> int:
    """Judge placement policies end to end: fresh starts on your model and prompts, in mirrored order.

    Ends when every difference is clear, after --rounds or after --minutes. `stratactl plan` follows the winner.
    Exit status 1 means that nothing could be compared, 3 that fewer than two arms suit this machine.
    """
    questions = read_questions(prompt_file, tokens)
    configuration = _configuration(config, model)
    facts = read_model_facts(configuration.model.path)
    topology = machine_facts()
    configuration, _ = with_fitting_memory(configuration, facts, topology)
    setting = Setting(
        configuration,
        facts,
        questions,
        PageCache(page_cache),
        recorded_profile(STATE_DIRECTORY, facts),
        recorded_bench(STATE_DIRECTORY),
    )
    contest = _contest(setting, arms, topology)
    if dry_run:
        _show_contest(contest, as_json=as_json)
        return 0
    require_writable(output, "stratactl tune")
    judge = Judge(
        [arm.name for arm in contest.arms],
        contest.reference.name,
        contest.objective,
        Limits(minutes * 60, rounds),
        seed,
    )
    progress = Progress(is_quiet=as_json)
    switch = None if system_objections() else Systemctl()
    with _ended_by_signals(), service_paused(switch, may_stop=stop_service):
        if not force:
            _require_alone()
            require_quiet(look_at_load(Tree(Path("/")), time.sleep), "stratactl tune")
        try:
            outcome = judge.run(DaemonEngine(contest.setting, contest.arms), time.monotonic, progress.report)
        finally:
            progress.clear()
    return _finish(contest, outcome, output, as_json=as_json)


def _configuration(path: Path, model: Path | None) -> Configuration:
    if model is not None:
        return Configuration(model=ModelSection(path=model.resolve()))
    return load_configuration(path)


def _request(configuration: Configuration, model: ModelFacts, topology: Topology) -> PlanRequest:
    """Give the daemon's request, without the policy and workers that somebody set: those are the arms'."""
    # The native module takes its time, and a wrong option is told before.
    from stratad.native.apply import memory_policy_failures

    gpu = configuration.gpu
    options = configured_options(
        configuration,
        model,
        placement_possible=not memory_policy_failures(),
        has_gpu=is_gpu_expected(gpu.mode, gpu.backend_path, topology),
    )
    return plan_request(model, replace(options, policy=None, worker_count=None))


def _contest(setting: Setting, arms_text: str | None, topology: Topology) -> Contest:
    """Give the arms with their plans.

    Raises:
        PlanRefusedError: An arm that was asked for, or all but one of the default ones, do not suit.
    """
    request = _request(setting.configuration, setting.model, topology)
    try:
        chosen = make_plan(topology, request, _without_tuning(machine_calibration(STATE_DIRECTORY)))
    except PlanRefused as refusal:
        raise refusal_error(refusal) from refusal
    if arms_text is None:
        arms = default_arms(topology, request, chosen)
    else:
        arms = tuple(_asked_arm(topology, request, arm) for arm in parse_arms(arms_text))
        require_distinct(arms)
    if len(arms) < 2:
        raise PlanRefusedError(
            tried="finding two arms to compare",
            because=f"only {', '.join(arm.name for arm in arms)} suits this machine and model",
            remedy="name arms that differ in workers, as --arms off:1,off:2",
        )
    return Contest(arms, reference_of(arms, chosen), topology, setting)


def _without_tuning(calibration: Calibration | None) -> Calibration | None:
    """Give the benchmark alone: an earlier tuning must not choose what this one is held against."""
    return None if calibration is None else replace(calibration, tuning=None)


def _asked_arm(topology: Topology, request: PlanRequest, arm: Arm) -> PlannedArm:
    found = plan_arm(topology, request, arm)
    if isinstance(found, PlanRefused):
        error = refusal_error(found)
        raise PlanRefusedError(
            tried=f"planning the arm {arm}",
            because=error.because,
            remedy=f"leave it out of --arms, or: {error.remedy}"
            if error.remedy
            else "leave it out of --arms",
            reason_lines=error.reason_lines,
        ) from found
    return found


def _show_contest(contest: Contest, *, as_json: bool) -> None:
    names = [arm.name for arm in contest.arms]
    order = block_order(names, 0)
    if as_json:
        print_json(
            {
                "arms": [{"arm": arm.name, "workers": len(arm.plan.layout.workers)} for arm in contest.arms],
                "reference": contest.reference.name,
                "first_block": list(order),
            }
        )
        return
    lines = [
        f"arm       {arm.name}: {count_of(len(arm.plan.layout.workers), 'worker')}"
        f"{' (the default)' if arm is contest.reference else ''}"
        for arm in contest.arms
    ]
    print_report(
        "\n".join([*lines, f"order     {', '.join(order)}", "result    nothing was started (--dry-run)"])
        + "\n"
    )


def _finish(contest: Contest, outcome: Outcome, output: Path, *, as_json: bool) -> int:
    """Keeps and shows the outcome; gives the exit status."""
    question = Question(
        model=contest.setting.model.paths[0].name,
        objective=contest.objective,
        prompt_count=len(contest.setting.questions.prompts),
        answer_tokens=contest.setting.questions.answer_tokens,
        page_cache=contest.setting.page_cache.value,
        reference=contest.reference.name,
    )
    document = tune_document(circumstances_of(contest.topology), question, contest.arms, outcome)
    is_kept = outcome.decision is not Decision.NOTHING
    if is_kept:
        write_document(output, document, "stratactl tune")
    if as_json:
        print_json(document)
    else:
        lines = report_lines(outcome, contest.reference.name, contest.objective)
        kept = f"kept in {output}" if is_kept else "not kept"
        print_report("\n".join([*lines, f"result    {kept}"]) + "\n")
    if not is_kept:
        for line in failures(outcome.records):
            click.echo(f"failed    {line}", err=True)
    return 0 if is_kept else 1


def _require_alone() -> None:
    """Raises DaemonError when another daemon than the service runs: its arena takes the memory of the arms'."""
    try:
        running = find_running(None, read_environment())
    except DaemonError:
        return
    raise DaemonError(
        tried="looking for a running daemon",
        because=f"one serves at {running.endpoint}",
        values={"process_id": running.process_id},
        remedy="stop it, or run `stratactl tune --force` and believe the numbers less",
        summary="this machine serves",
    )


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP unwind as Ctrl-C does: children end, files go, a stopped service starts again."""

    def end(number: int, frame: FrameType | None) -> None:
        # No error of ours: nothing may take it for an arm's failure.
        raise KeyboardInterrupt

    former = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
