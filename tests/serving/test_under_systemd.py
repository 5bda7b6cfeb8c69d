"""What the daemon does with what systemd gives it: the applied plan, and SIGHUP. The lab has the rest."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from planner import Plan, make_plan, plan_to_json
from stratad.config import load_configuration
from stratad.gguf.model import read_model_facts
from stratad.plan.facts import configured_options, machine_facts, plan_request
from tests.serving.support.daemon_process import DaemonProcess, started
from tests.serving.support.served import wait_until
from tests.support.gguf_models import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", vocabulary="bytes")


def plan_for(model: Path, folder: Path) -> Plan:
    """The plan that `stratactl apply` would leave for this machine and model."""
    configuration = folder / "for-planning.toml"
    configuration.write_text(f'[model]\npath = "{model}"\n')
    facts = read_model_facts(model)
    options = configured_options(load_configuration(configuration), facts, has_gpu=False)
    return make_plan(machine_facts(), plan_request(facts, options))


def status(daemon: DaemonProcess) -> dict[str, object]:
    document = httpx.get(f"{daemon.endpoint}/status").json()
    assert isinstance(document, dict)
    return document


def test_an_applied_plan_is_taken_as_it_is(model: Path, tmp_path: Path) -> None:
    # A plan that nobody would make anew: its fingerprint is how it is known again.
    plan = replace(plan_for(model, tmp_path), fingerprint="0123456789ab")
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(plan))
    with started(tmp_path / "daemon", model, variables={"STRATAD_PLAN": str(path)}) as daemon:
        daemon.wait_for("READY=1")
        shown = status(daemon)["plan"]
        assert isinstance(shown, dict)
        assert (shown["policy"], shown["fingerprint"]) == (plan.policy.value, "0123456789ab")
        assert daemon.terminate() == 0


def test_an_applied_plan_for_another_machine_keeps_the_daemon_from_starting(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_to_json(replace(plan_for(model, tmp_path), machine_fingerprint="000000000000")))
    with started(tmp_path / "daemon", model, variables={"STRATAD_PLAN": str(path)}) as daemon:
        assert daemon.exit_status() == 2
        assert "another machine" in daemon.log
        assert "stratactl apply" in daemon.log
        assert not daemon.has_sent("READY=1")


def test_sighup_takes_what_can_change_and_names_what_waits(model: Path, tmp_path: Path) -> None:
    with started(tmp_path, model) as daemon:
        daemon.wait_for("READY=1")
        configuration = tmp_path / "stratad.toml"
        text = configuration.read_text()
        configuration.write_text(f"{text}max_queue = 3\n[placement]\nlimit_ratio = 0.5\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("RELOADING=1")
        wait_until(lambda: "settings=server.max_queue" in daemon.log)
        assert "settings=placement.limit_ratio" in daemon.log
        assert httpx.get(f"{daemon.endpoint}/placement").json()["limit_ratio"] == 0.5

        configuration.write_text("nonsense")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("STATUS=the configuration cannot be used; the former one still counts")
        assert httpx.get(f"{daemon.endpoint}/placement").json()["limit_ratio"] == 0.5
        assert json.loads(httpx.get(f"{daemon.endpoint}/health").text)
        assert daemon.terminate() == 0


def test_a_model_without_a_vocabulary_is_refused_and_does_not_abort_the_process(tmp_path: Path) -> None:
    model = write_model(tmp_path / "none.gguf", vocabulary="none")
    with started(tmp_path / "daemon", model) as daemon:
        assert daemon.exit_status() == 1
        assert "no vocabulary" in daemon.log
