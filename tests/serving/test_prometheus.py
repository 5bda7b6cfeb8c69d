"""A real Prometheus scrapes a real daemon: every panel of the dashboard and every rule has data to work on."""

from __future__ import annotations

import math
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

pytest.importorskip("stratad._native", reason="the native module is not built")

from stratad.daemon.main import demo_model_path
from stratad.metrics.panels import SECTIONS, Panel
from tests.serving.support.daemon_process import LIMIT_SECONDS, DaemonProcess, started
from tests.serving.support.served import wait_until
from tests.support.prometheus import PrometheusServer, program, running_prometheus

SHIPPED = Path(__file__).parents[2] / "etc" / "prometheus"
PANELS = [panel for _, panels in SECTIONS for panel in panels]
# What this machine need not have.
NOT_HERE = ("systemd", "a GPU")


@dataclass(frozen=True, slots=True)
class Observed:
    """A daemon at work and the server that watches it."""

    daemon: DaemonProcess
    prometheus: PrometheusServer


@contextmanager
def traffic(endpoint: str) -> Iterator[None]:
    """Requests one after the other, the same beginning each time, until the context ends."""
    is_over = Event()

    def ask() -> None:
        with httpx.Client(base_url=endpoint, timeout=LIMIT_SECONDS) as client:
            while not is_over.is_set():
                body = {"prompt": "The next morning, Elizabeth", "max_tokens": 24}
                client.post("/v1/completions", json=body).raise_for_status()

    thread = Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def quick_configuration(folder: Path, address: str) -> Path:
    """The shipped configuration and rules, for another address and at a pace for tests."""
    for rules in SHIPPED.glob("stratad-*.yml"):
        shutil.copy(rules, folder)
    text = (SHIPPED / "prometheus.yml").read_text(encoding="utf-8")
    for shipped, ours in (
        ("scrape_interval: 15s", "scrape_interval: 1s\n  scrape_timeout: 1s"),
        ("evaluation_interval: 1m", "evaluation_interval: 1s"),
        ("127.0.0.1:8090", address),
    ):
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, ours)
    path = folder / "prometheus.yml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    program("prometheus")
    folder = tmp_path_factory.mktemp("observed")
    with started(folder / "daemon", demo_model_path()) as daemon:
        daemon.wait_for("READY=1")
        address = daemon.endpoint.removeprefix("http://")
        configuration = quick_configuration(folder, address)
        with traffic(daemon.endpoint), running_prometheus(configuration, folder) as prometheus:
            # The last of the rules' inputs: a rate needs two samples, and its average a rule's result.
            prometheus.wait_until("stratad:decode_step_seconds:baseline7d > 0")
            yield Observed(daemon, prometheus)
        assert daemon.terminate() == 0


def has_number(series: list[dict[str, object]]) -> bool:
    return any(not math.isnan(float(one["value"][1])) for one in series)  # type: ignore[index]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_query_of_the_dashboard_gives_data(observed: Observed, panel: Panel) -> None:
    for query in panel.queries:
        expression = query.expression.replace("$filter", 'job="stratad",instance=~".*"')
        expression = expression.replace("$__rate_interval", "1m")
        assert "$" not in expression
        if panel.only_with in NOT_HERE:
            # It parses, or the server would refuse it.
            observed.prometheus.query(expression)
        else:
            wait_until(lambda text=expression: has_number(observed.prometheus.query(text)))  # type: ignore[misc]


def test_every_rule_is_evaluated_without_error_and_its_inputs_are_there(observed: Observed) -> None:
    rules = [rule for group in observed.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 40
    for rule in rules:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule
        if rule["type"] == "recording":
            assert has_number(observed.prometheus.query(rule["name"])), rule["name"]
            continue
        # Without its comparison an alert says nothing, so each metric that it reads is asked for.
        words = set(re.findall(r"\b(?:up|stratad[_:][a-z0-9_:]+)\b", rule["query"]))
        for name in words - {"stratad_service_restarts_total"}:
            assert observed.prometheus.query(f'{name}{{job="stratad"}}'), (rule["name"], name)


def test_a_healthy_daemon_sets_no_alert_off_but_what_this_machine_itself_is_short_of(
    observed: Observed,
) -> None:
    about_the_machine = {"StratadNodeHeadroom"}
    alerts = {alert["labels"]["alertname"] for alert in observed.prometheus.get("alerts")["alerts"]}
    assert alerts <= about_the_machine


def test_the_server_has_no_objection_to_what_it_scrapes(observed: Observed) -> None:
    (target,) = observed.prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    # One daemon, whatever it serves: labels have few values.
    assert len(observed.prometheus.query('{job="stratad"}')) < 1000


def test_a_daemon_on_a_unix_socket_is_scraped_through_systemds_proxy(tmp_path: Path) -> None:
    """What etc/prometheus/unix-socket has systemd do, without systemd as process 1."""
    activate = shutil.which("systemd-socket-activate")
    proxy = next(
        (path for path in Path("/").glob("*lib/systemd/systemd-socket-proxyd") if path.is_file()),
        Path("/usr/lib/systemd/systemd-socket-proxyd"),
    )
    if activate is None or not proxy.is_file():
        pytest.skip("systemd-socket-activate or systemd-socket-proxyd is missing: the proxy is left out")
    service = (SHIPPED / "unix-socket" / "stratad-metrics.service").read_text(encoding="utf-8")
    assert re.search(
        r"^ExecStart=/usr/lib/systemd/systemd-socket-proxyd /run/stratad/api.sock$", service, re.M
    )
    api = tmp_path / "api.sock"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = f'[server]\nunix_socket = "{api}"\n'
    with started(tmp_path / "daemon", demo_model_path(), settings=settings) as daemon:
        daemon.wait_for("READY=1")
        command = [activate, f"--listen=127.0.0.1:{port}", str(proxy), str(api)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as proxying:
            try:
                wait_until(lambda: accepts(port))
                text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_SECONDS).text
            finally:
                proxying.terminate()
        assert 'stratad_state{stratad_state="ready"} 1.0' in text
        assert daemon.terminate() == 0


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
