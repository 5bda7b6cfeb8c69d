"""What the daemon says about itself: metrics, status, placement, page."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from planner import Effect, Reason
from planner.sysfs import Tree
from stratad.daemon.placement_watch import PlacementWatch
from stratad.runner.protocol import NativeCounters, PlacementReport, SlicePlacement
from stratad.server.failures import HttpFailure
from stratad.server.limits import require_local
from stratad.service.samples import node_memory_samples
from stratad.service.service import PlanSummary, ServiceLimits, ServiceState
from tests.serving.support.scripted_runner import ScriptedRunner
from tests.serving.support.served import LIMIT_SECONDS, MODEL, Served, serve, wait_until
from tests.support.prometheus import promtool

LIMITS = ServiceLimits(0.95, 64, 60.0)


def _scrape(served: Served) -> dict[str, float]:
    """Values by name and labels, as the text has them."""
    text = httpx.get(served.url + "/metrics").text
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_what_was_served() -> None:
    with serve() as served:
        before = _scrape(served)
        client = served.client()
        client.completions.create(model=MODEL, prompt="abcd")
        client.completions.create(model=MODEL, prompt="abcd", max_tokens=2)
        after = _scrape(served)
    model = f" model_name={MODEL}"
    assert before["stratad_generation_tokens_total" + model] == 0
    assert after["stratad_generation_tokens_total" + model] == 4 + 2
    # The second prompt is reused up to its last token.
    assert after["stratad_prompt_tokens_total" + model] == 5 + 1
    assert after["stratad_decode_steps_total"] == 3 + 1
    assert after["stratad_time_to_first_token_seconds_count" + model] == 2
    assert after["stratad_inter_token_latency_seconds_count" + model] == 3 + 1
    assert after["stratad_e2e_request_latency_seconds_count" + model] == 2
    assert after[f"stratad_requests_total finish_reason=stop{model}"] == 1
    assert after[f"stratad_requests_total finish_reason=length{model}"] == 1
    assert after["stratad_requests_running" + model] == 0


def test_metrics_show_native_counters_state_plan_and_placement() -> None:
    with serve() as served:
        tight = Reason("headroom-tight", Effect.WARNS, "m")
        served.service.planned(
            PlanSummary("split", "f00d", (tight,), confidence="measured", arena_scope="weights")
        )
        values = _scrape(served)
        assert "stratad_placement_check_age_seconds" not in values, "nothing was checked yet"
        served.service.sample_placement()
        values = _scrape(served)
    assert values["stratad_pool_barrier_wait_seconds_total slice=0"] == 0.5
    assert values["stratad_pool_drain_seconds_total slice=0"] == 0.25
    assert values["stratad_pool_tasks_total slice=0"] == 12
    assert values["stratad_expert_bytes_total slice=0"] == 4096
    assert values["stratad_fused_chains_total"] == 7
    assert values["stratad_state stratad_state=ready"] == 1
    assert values["stratad_state stratad_state=loading"] == 0
    assert (
        values["stratad_plan_info arena_scope=weights confidence=measured fingerprint=f00d policy=split"] == 1
    )
    assert values["stratad_plan_drift code=workers-displaced"] == 0
    assert values["stratad_plan_reason code=headroom-tight effect=warns"] == 1
    assert values["stratad_placement_local_ratio node=0 slice=0"] == 1
    assert values["stratad_arena_bytes node=0"] == 1 << 20
    assert values["stratad_placement_check_age_seconds"] >= 0


def test_a_planned_node_without_a_page_shows_a_ratio_of_0_and_an_unplaced_slice_where_it_lies() -> None:
    with serve() as served:
        astray, unplaced = SlicePlacement(0, (1,), ((0, 4),), 0), SlicePlacement(1, (), ((0, 1), (1, 3)), 0)
        served.runner.report = PlacementReport((astray, unplaced), (), 4096)
        served.service.sample_placement()
        values = _scrape(served)
    ratios = {
        name: value for name, value in values.items() if name.startswith("stratad_placement_local_ratio")
    }
    assert ratios == {
        "stratad_placement_local_ratio node=1 slice=0": 0.0,
        "stratad_placement_local_ratio node=0 slice=1": 0.25,
        "stratad_placement_local_ratio node=1 slice=1": 0.75,
    }


def test_metrics_are_there_while_loading() -> None:
    with serve(is_loaded=False) as served:
        values = _scrape(served)
    assert values["stratad_state stratad_state=loading"] == 1
    assert not any(name.startswith("stratad_generation_tokens") for name in values)


def test_promtool_accepts_a_scrape() -> None:
    with serve() as served:
        served.client().completions.create(model=MODEL, prompt="abcd")
        served.service.sample_placement()
        text = httpx.get(served.url + "/metrics").text
    ours = re.sub(r"(?m)^(# (HELP|TYPE) )?process_.*\n", "", text)
    assert promtool("check", "metrics", text=ours) == ""


def test_placement_is_sampled_anew_and_moves_the_state_both_ways() -> None:
    with serve() as served:
        good = served.runner.report
        assert httpx.get(served.url + "/placement").json()["verdict"] == "met"
        served.runner.report = PlacementReport((SlicePlacement(0, (0,), ((0, 1), (1, 1)), 3),), (), 4096)
        astray = httpx.get(served.url + "/placement").json()
        assert (astray["verdict"], astray["worst_ratio"]) == ("below-limit", 0.5)
        assert astray["slices"][0]["unknown_pages"] == 3
        assert httpx.get(served.url + "/health").json() == {"status": "degraded"}
        served.runner.report = good
        assert httpx.get(served.url + "/placement").json()["verdict"] == "met"
        assert httpx.get(served.url + "/health").json() == {"status": "ready"}


def test_the_watch_tells_when_pages_go_astray_and_when_they_are_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serve() as served:
        good = served.runner.report
        astray = PlacementReport((SlicePlacement(0, (0,), ((0, 1), (1, 1)), 0),), (), 4096)
        with (
            caplog.at_level(logging.INFO, "stratad"),
            PlacementWatch(served.service, 0.002, is_repairing=False),
        ):
            served.runner.report = astray
            wait_until(lambda: served.service.state is ServiceState.DEGRADED)
            wait_until(lambda: "placement-below-limit" in _reason_codes(served))
            # A check that fails is told, and the next one works again.
            served.runner.report = None
            wait_until(lambda: "the check failed" in caplog.text)
            served.runner.report = good
            wait_until(lambda: served.service.state is ServiceState.READY)
            wait_until(lambda: "placement-below-limit" not in _reason_codes(served))
            wait_until(lambda: "verdict=met" in caplog.text)
        assert caplog.text.count("verdict=below-limit") == 1, "told once, not at every check"


def test_the_watch_moves_pages_back_and_says_so() -> None:
    with serve() as served:
        served.runner.repaired_report = served.runner.report
        with PlacementWatch(served.service, 0.002, is_repairing=True):
            served.runner.report = PlacementReport((SlicePlacement(0, (0,), ((1, 2),), 0),), (), 4096)
            wait_until(lambda: "placement-repaired" in _reason_codes(served))
        assert served.service.state is ServiceState.READY
        assert "placement-below-limit" not in _reason_codes(served)
        assert served.runner.repair_attempts == 1


def test_a_repair_that_moved_nothing_is_tried_again_only_when_pages_have_moved() -> None:
    def astray(local_pages: int) -> PlacementReport:
        return PlacementReport((SlicePlacement(0, (0,), ((0, local_pages), (1, 6)), 0),), (), 4096)

    with serve() as served:
        watch = PlacementWatch(served.service, 0, is_repairing=True)
        for report, attempts in ((astray(4), 1), (astray(4), 1), (astray(3), 2), (astray(3), 2)):
            served.runner.report = report
            watch.look()
            assert served.runner.repair_attempts == attempts
        assert served.service.state is ServiceState.DEGRADED
        assert "placement-repaired" not in _reason_codes(served)


def _reason_codes(served: Served) -> list[str]:
    return [reason["code"] for reason in httpx.get(served.url + "/status").json()["reasons"]]


@pytest.mark.parametrize(
    ("client", "is_local"),
    [(("127.0.0.1", 1), True), (("::1", 1), True), (None, True), (("10.0.0.7", 1), False)],
)
def test_placement_is_for_clients_on_this_machine(client: tuple[str, int] | None, is_local: bool) -> None:
    request = Request({"type": "http", "client": client, "headers": []})
    if is_local:
        require_local(request)
        return
    with pytest.raises(HttpFailure) as refused:
        require_local(request)
    assert refused.value.status == 403


def test_status_has_rates_reasons_and_placement() -> None:
    with serve() as served:
        served.service.planned(PlanSummary("off", "f00d"))
        served.service.found(Reason("placement-fallback", Effect.WARNS, "first"))
        served.service.found(Reason("placement-fallback", Effect.WARNS, "second"))
        served.client().completions.create(model=MODEL, prompt="abcd")
        served.service.sample_placement()
        status = httpx.get(served.url + "/status").json()
    assert (status["plan"]["policy"], status["plan"]["fingerprint"]) == ("off", "f00d")
    assert status["machine"] is None
    assert status["pool"]["slices"][0]["drain_seconds"] == 0.25
    assert status["experts"]["hits"] is None, "there is no cache, so it has no hit rate"
    assert status["decode"]["slot_list"] == [
        {"slot": 0, "work": None, "held_tokens": 8, "prompt_tokens": None, "generated_tokens": None}
    ]
    assert [reason["message"] for reason in status["reasons"]] == ["second"]
    assert status["decode"]["generation_tokens"] == 4
    assert status["decode"]["last_timings"]["predicted_n"] == 4
    assert status["placement"]["worst_ratio"] == 1.0


def test_the_page_stands_alone() -> None:
    with serve() as served:
        page = httpx.get(served.url + "/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    # Nothing from elsewhere: no source, no link but the icon in itself, no address but the name of SVG.
    text = page.text.replace("http://www.w3.org/2000/svg", "").replace('<link rel="icon" href="data:', "")
    assert not re.search(r"https?://|\bsrc=|<link|@import|url\(", text)
    # No handler in the markup; the policy would refuse it.
    assert not re.search(r"<[^>]+\son\w+=", text)


def test_the_pages_policy_names_its_style_and_its_script_by_their_hashes() -> None:
    with serve() as served:
        page = httpx.get(served.url + "/")
    policy = page.headers["content-security-policy"]
    for kind in ("style", "script"):
        content = re.findall(rf"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)
        assert len(content) == 1, "what is not named by a hash does not run"
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy


def test_free_memory_is_read_per_node_and_a_missing_node_has_none(tmp_path: Path) -> None:
    node = tmp_path / "sys/devices/system/node/node1"
    huge_pages = node / "hugepages/hugepages-2048kB"
    huge_pages.mkdir(parents=True)
    (huge_pages / "nr_hugepages").write_text("8\n")
    (huge_pages / "free_hugepages").write_text("3\n")
    (node / "meminfo").write_text(
        "Node 1 MemTotal:  100 kB\nNode 1 MemFree:   42 kB\nNode 1 Inactive(file):   5 kB\n"
    )
    samples = {
        (sample.name.removeprefix("stratad_node_"), *sample.labels): sample.value
        for sample in node_memory_samples(Tree(tmp_path), [0, 1])
    }
    page_bytes = 2 << 20
    assert samples == {
        ("memory_total_bytes", "1"): 100 * 1024,
        ("memory_free_bytes", "1"): 42 * 1024,
        ("memory_available_bytes", "1"): 47 * 1024,
        ("huge_pages_bytes", "1", str(page_bytes)): 8 * page_bytes,
        ("huge_pages_free_bytes", "1", str(page_bytes)): 3 * page_bytes,
    }


def test_a_scrape_holds_no_lock_that_decoding_or_other_clients_need() -> None:
    """While the native side is being asked, tokens are decoded, requests come in, and the state can be read."""
    with serve() as served, ThreadPoolExecutor() as pool:
        asked, go_on = Event(), Event()
        read_counters = served.runner.counters

        def slow_counters() -> NativeCounters:
            asked.set()
            assert go_on.wait(LIMIT_SECONDS)
            return read_counters()

        served.runner.counters = slow_counters  # type: ignore[method-assign]
        scrape = pool.submit(_scrape, served)
        assert asked.wait(LIMIT_SECONDS)
        try:
            answer = served.client().completions.create(model=MODEL, prompt="abcd")
            assert answer.choices[0].text == "Hello!"
            served.service.found(Reason("headroom-tight", Effect.WARNS, "m"))
            assert httpx.get(served.url + "/health").json() == {"status": "ready"}
            # /status asks the native side as well: it waits, and whoever waits for it keeps nobody else waiting.
            status = pool.submit(httpx.get, served.url + "/status", timeout=LIMIT_SECONDS)
            assert served.client().completions.create(model=MODEL, prompt="abcd").choices[0].text == "Hello!"
            assert not scrape.done()
        finally:
            go_on.set()
        assert scrape.result()["stratad_state stratad_state=ready"] == 1
        assert status.result().json()["decode"]["generation_tokens"] == 8


def test_a_scrape_does_not_wait_for_a_step_of_decoding() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner) as served, ThreadPoolExecutor() as pool:
        answer = pool.submit(served.client().completions.create, model=MODEL, prompt="abcd")
        runner.wait_until_step(1)
        values = _scrape(served)
        assert values[f"stratad_requests_running model_name={MODEL}"] == 1
        assert values["stratad_stalled_seconds"] > 0
        runner.release()
        assert answer.result().choices[0].text == "Hello!"


def test_refused_requests_are_counted_by_why() -> None:
    runner = ScriptedRunner(holds_steps=True)
    with serve(runner, max_queue=0) as served, ThreadPoolExecutor() as pool:
        served.service.limited(replace(LIMITS, max_queue=7))
        answer = pool.submit(served.client().completions.create, model=MODEL, prompt="abcd")
        runner.wait_until_step(1)
        refused = httpx.post(served.url + "/v1/completions", json={"prompt": "abcd"})
        values = _scrape(served)
        runner.release()
        answer.result()
    assert refused.status_code == 429
    code = refused.json()["error"]["code"]
    assert values[f"stratad_requests_refused_total code={code} model_name={MODEL}"] == 1
    assert values[f"stratad_queue_capacity model_name={MODEL}"] == 7


def test_sixteen_clients_at_once_each_get_their_own_answer() -> None:
    runner = ScriptedRunner(lambda prompt: [b"<", prompt[::-1], b">"])

    async def ask_all(url: str) -> list[str]:
        async with httpx.AsyncClient(timeout=30) as client:
            prompts = [f"prompt-{number}" for number in range(16)]
            answers = await asyncio.gather(
                *(client.post(url + "/v1/completions", json={"prompt": prompt}) for prompt in prompts)
            )
        return [answer.json()["choices"][0]["text"] for answer in answers]

    with serve(runner, max_queue=16) as served:
        texts = asyncio.run(ask_all(served.url))
    assert texts == [f"<{f'prompt-{number}'[::-1]}>" for number in range(16)]
