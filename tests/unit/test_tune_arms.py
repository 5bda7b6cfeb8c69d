"""Arms as users write them, and the plans they come to; prompts and the configuration of a trial."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from planner import PlanRefused, Policy, make_plan
from stratad.config import Configuration, ModelSection, ServerSection, load_configuration
from stratad.config.reading import parse_configuration
from stratad.config.writing import configuration_text
from stratad.errors import ConfigurationError
from stratad.tune import Arm, PlannedArm, default_arms, parse_arms, plan_arm, reference_of
from stratad.tune.arms import require_distinct
from stratad.tune.daemon_engine import trial_configuration
from stratad.tune.prompts import WARM_UP, Questions, read_questions
from tests.support.machines import MachineShape, even_nodes, machine_topology
from tests.support.planning import request_for

TWO = machine_topology(MachineShape(even_nodes(2, 12, threads_per_core=2, total_gib=64)))
ONE = machine_topology(MachineShape(even_nodes(1, 4, total_gib=64)))
REQUEST = request_for(20)


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        ("split", Arm(Policy.SPLIT)),
        ("split:16", Arm(Policy.SPLIT, None, None, 16)),
        ("split/2:16", Arm(Policy.SPLIT, None, 2, 16)),
        ("single-socket@1", Arm(Policy.SINGLE_SOCKET, (1,))),
        ("single-socket@2+3:8", Arm(Policy.SINGLE_SOCKET, (2, 3), None, 8)),
        ("interleave@0-3", Arm(Policy.INTERLEAVE, (0, 1, 2, 3))),
        ("off:1", Arm(Policy.OFF, None, None, 1)),
    ],
)
def test_an_arm_is_read_as_it_is_written(text: str, arm: Arm) -> None:
    assert parse_arms(text) == (arm,)
    assert parse_arms(str(arm)) == (arm,)


@pytest.mark.parametrize(
    "text", ["", " , ", "mirror", "split:0", "split:x", "off@", "split/0", "off,off", "split@3-1"]
)
def test_what_is_no_arm_is_refused_with_the_spelling(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_arms(text)
    assert "single-socket@1" in caught.value.remedy


def test_by_default_every_feasible_candidate_is_an_arm_the_planners_first() -> None:
    chosen = make_plan(TWO, REQUEST)
    arms = default_arms(TWO, REQUEST, chosen)
    assert {(arm.plan.policy, arm.arm.node_ids) for arm in arms} == {
        (Policy.SPLIT, (0, 1)),
        (Policy.SINGLE_SOCKET, (0,)),
        (Policy.SINGLE_SOCKET, (1,)),
        (Policy.INTERLEAVE, (0, 1)),
        (Policy.OFF, (0, 1)),
    }
    assert arms[0].plan.decides_as(chosen)
    assert reference_of(arms[1:], chosen) is arms[1]
    assert reference_of((arms[1], arms[0]), chosen) is arms[0]


def test_on_one_node_the_worker_counts_differ() -> None:
    arms = default_arms(ONE, REQUEST, make_plan(ONE, REQUEST))
    assert [len(arm.plan.layout.workers) for arm in arms] == [2, 1]
    tiny = machine_topology(MachineShape(even_nodes(1, 1, total_gib=64)))
    assert len(default_arms(tiny, REQUEST, make_plan(tiny, REQUEST))) == 1


def test_a_named_package_gets_its_own_plan() -> None:
    for node_id in (0, 1):
        found = plan_arm(TWO, REQUEST, Arm(Policy.SINGLE_SOCKET, (node_id,)))
        assert isinstance(found, PlannedArm)
        assert found.plan.memory_nodes == (node_id,)


def test_a_named_number_of_slices_tells_nodes_from_packages() -> None:
    shape = MachineShape(even_nodes(4, 8, nodes_per_package=2, total_gib=64))
    topology = machine_topology(shape)
    for slice_count in (2, 4):
        found = plan_arm(topology, REQUEST, Arm(Policy.SPLIT, None, slice_count))
        assert isinstance(found, PlannedArm)
        assert len(found.plan.layout.slices) == slice_count


@pytest.mark.parametrize(
    "arm", [Arm(Policy.SPLIT, (0, 7)), Arm(Policy.SINGLE_SOCKET, (5,)), Arm(Policy.SPLIT, None, 3)]
)
def test_an_arm_that_this_machine_cannot_run_is_refused(arm: Arm) -> None:
    assert isinstance(plan_arm(TWO, REQUEST, arm), PlanRefused)


def test_two_names_for_one_plan_are_not_compared() -> None:
    arms = [plan_arm(TWO, REQUEST, arm) for arm in parse_arms("split,split@0-1")]
    with pytest.raises(ConfigurationError, match="same plan"):
        require_distinct([arm for arm in arms if isinstance(arm, PlannedArm)])


def test_prompts_are_separated_by_dashes(tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("one\nmore of one\n---\n\ntwo\n---\n")
    assert read_questions(path, 5) == Questions(("one\nmore of one", "two"), 5)


@pytest.mark.parametrize(
    "text", ["", "---\n---\n", "same\n---\nsame\n", "---\n".join(f"{n}\n" for n in range(65))]
)
def test_prompts_that_cannot_be_measured_with_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts"
    path.write_text(text)
    with pytest.raises(ConfigurationError):
        read_questions(path, 5)
    with pytest.raises(ConfigurationError):
        read_questions(tmp_path / "absent", 5)


def test_the_built_in_prompts_share_no_beginning() -> None:
    """Else the second would be answered out of the first one's memory."""
    beginnings = [text[:12] for text in (WARM_UP, *read_questions(None, 5).prompts)]
    assert len(set(beginnings)) == len(beginnings)


def test_a_trial_differs_from_the_users_settings_in_policy_and_address_only(tmp_path: Path) -> None:
    model = ModelSection(path=tmp_path / "a.gguf", context_tokens=777, slots=3, save_slots=True)
    server = ServerSection(host="0.0.0.0", api_keys_file=tmp_path / "keys", state_directory=tmp_path)
    mine = Configuration(model=model, server=server)
    mine = replace(mine, placement=replace(mine.placement, spin_microseconds=99, workers=5, policy="split"))
    mine = replace(mine, gpu=replace(mine.gpu, vram_reserve_bytes=5, on_failure="cpu"))
    arm = plan_arm(TWO, REQUEST, Arm(Policy.INTERLEAVE))
    assert isinstance(arm, PlannedArm)
    trial = trial_configuration(mine, arm, tmp_path)
    # A prompt that one start saves would be the next one's answer out of memory.
    assert trial.model == replace(mine.model, save_slots=False)
    assert (trial.placement.policy, trial.placement.workers) == ("interleave", None)
    # Another placement than the arm's would measure another arm, and so would a GPU's work done by the CPUs.
    assert trial.placement.fallback == "fail"
    assert trial.gpu == replace(mine.gpu, on_failure="exit")
    frozen = trial_configuration(mine, arm, tmp_path, is_cache_frozen=True)
    assert frozen.gpu == replace(mine.gpu, on_failure="exit", freeze_cache=True)
    assert trial.placement.spin_microseconds == 99
    assert (trial.server.port, trial.server.host) == (0, "127.0.0.1")
    assert trial.server.runtime_directory == tmp_path / "run"
    assert (trial.server.api_keys_file, trial.server.state_directory) == (None, None)


def test_a_written_configuration_reads_back_the_same(tmp_path: Path) -> None:
    odd = tmp_path / 'a "quoted" \\ na\u00efve\x7f.gguf'
    configuration = Configuration(
        model=ModelSection(path=odd, name="x"),
        server=ServerSection(allowed_hosts=("a.example", "b.example"), unix_socket=tmp_path / "s"),
    )
    text = configuration_text(configuration)
    assert parse_configuration(tomllib.loads(text), tmp_path / "x.toml") == configuration
    path = tmp_path / "stratad.toml"
    path.write_text(text, encoding="utf-8")
    assert load_configuration(path) == configuration
