"""The alerts of `docs/alerts.yaml` in a real Prometheus: they read, what they count exists, and they fire."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import start_http_server
from tests.builders import no_answer
from tests.control.loop_bed import Bed as LoopBed
from tests.control.loop_bed import bed as operating

from docs.operator_metrics import ALERTS
from e2e.ports import free_ports
from e2e.processes import PATIENCE, Processes, StateFile
from e2e.prometheus import SCRAPE_CONFIG, Prometheus, run
from e2e.stage import until

RULES: Sequence[Mapping[str, Any]] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
WELL = {
    "vllm_autotuner_leader": "1+0x120",
    "vllm_autotuner_shards": "1+0x120",
    'vllm_autotuner_ticks_total{outcome="Done"}': "0+4x120",
    'vllm_autotuner_ticks_total{outcome="Failed"}': "0+0x120",
    'vllm_autotuner_changes_total{knob="maxNumSeqs",outcome="RollbackFailed"}': "0+0x120",
    'vllm_autotuner_rollbacks_total{knob="maxNumSeqs",cause="Harm"}': "0+0x120",
    'vllm_autotuner_services{diagnosis="Healthy"}': "3+0x120",
}
"""Two hours of an operator that does its work, a sample a minute."""
BLIND = 'vllm_autotuner_services{diagnosis="MetricsBlind"}'


def replaced(name: str, values: str) -> dict[str, str]:
    """The same, but for one series; empty values: it is not there."""
    [found] = [each for each in WELL if each.startswith(name)] or [name]
    return {each: text for each, text in (WELL | {found: values}).items() if text}


STORIES = {
    "all is well": (WELL, {}),
    "nobody leads": (replaced("vllm_autotuner_leader", "1+0x10 0+0x110"), {"AutotunerWithoutLeader"}),
    "one of two shards has no leader": (
        replaced("vllm_autotuner_shards", "2+0x120"),
        {"AutotunerWithoutLeader"},
    ),
    "a leader hangs beside another one that does not": (
        {
            name.replace("{", '{instance="b",') if "{" in name else f'{name}{{instance="b"}}': values
            for name, values in WELL.items()
            if "ticks_total" not in name
        }
        | {
            f'vllm_autotuner_ticks_total{{instance="{instance}",outcome="Done"}}': values
            for instance, values in (("a", "0+4x120"), ("b", "0+4x20 80+0x100"))
        }
        | {'vllm_autotuner_leader{instance="a"}': "1+0x120"},
        {"AutotunerStandsStill"},
    ),
    "a standby does nothing": (
        WELL
        | {
            'vllm_autotuner_leader{instance="standby"}': "0+0x120",
            'vllm_autotuner_ticks_total{instance="standby",outcome="Done"}': "0+0x120",
        },
        {},
    ),
    "nobody is there": (replaced("vllm_autotuner_leader", ""), {"AutotunerWithoutLeader"}),
    "a poisoned object": (
        replaced('vllm_autotuner_ticks_total{outcome="Failed"', "0+0x55 1+0x65"),
        {"AutotunerFails"},
    ),
    "it hangs": (replaced('vllm_autotuner_ticks_total{outcome="Done"', "0+4x20 80+0x100"), {"AutotunerStandsStill"}),
    "the first rollback that fails": (
        replaced("vllm_autotuner_changes_total", "0+0x30 1+0x90"),
        {"AutotunerRollbackFailed"},
    ),
    "two changes did harm": (replaced("vllm_autotuner_rollbacks_total", "0+0x10 1+0x10 2+0x100"), {}),
    "five did": (replaced("vllm_autotuner_rollbacks_total", "0+0x10 1 2 3 4 5+0x100"), {"AutotunerDoesHarm"}),
    "ticks are longer than the interval": (
        WELL
        | {
            "vllm_autotuner_interval_seconds": "15x120",
            'vllm_autotuner_tick_duration_seconds_bucket{le="15"}': "0+1x120",
            'vllm_autotuner_tick_duration_seconds_bucket{le="30"}': "0+4x120",
            'vllm_autotuner_tick_duration_seconds_bucket{le="+Inf"}': "0+4x120",
        },
        {"AutotunerFallsBehind"},
    ),
    "ticks are shorter": (
        WELL
        | {
            "vllm_autotuner_interval_seconds": "15x120",
            'vllm_autotuner_tick_duration_seconds_bucket{le="5"}': "0+4x120",
            'vllm_autotuner_tick_duration_seconds_bucket{le="15"}': "0+4x120",
            'vllm_autotuner_tick_duration_seconds_bucket{le="+Inf"}': "0+4x120",
        },
        {},
    ),
    "nothing is written": (
        WELL | {'vllm_autotuner_effects_oldest_seconds{urgency="Change"}': "0x40 15+15x80"},
        {"AutotunerWritesWait"},
    ),
    "a service is not scraped": (
        WELL | {'vllm_autotuner_services{diagnosis="MetricsBlind"}': "1+0x120"},
        {"AutotunerBlind"},
    ),
    "for a moment": (WELL | {'vllm_autotuner_services{diagnosis="MetricsBlind"}': "_x50 1+0x5 _x60"}, {}),
}


@dataclass(frozen=True)
class Operator:
    """A running one, and where its metrics are."""

    loop: LoopBed
    address: str


@pytest.mark.parametrize("story", STORIES)
def test_who_is_alerted_after_an_hour(story: str, binaries: Mapping[str, Path], tmp_path: Path) -> None:
    series, fires = STORIES[story]
    alerts = {rule["alert"]: {"exp_labels": labels(rule), "exp_annotations": told(rule)} for rule in RULES}
    expected = [
        {"eval_time": "1h", "alertname": name, "exp_alerts": [alert] if name in fires else []}
        for name, alert in alerts.items()
    ]
    test = tmp_path / "test.yaml"
    test.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(ALERTS)],
                "evaluation_interval": "1m",
                "tests": [
                    {
                        "interval": "1m",
                        "input_series": [{"series": name, "values": values} for name, values in series.items()],
                        "alert_rule_test": expected,
                    }
                ],
            }
        ),
        encoding="utf-8",
    )
    run([binaries["promtool"], "test", "rules", test])


def labels(rule: Mapping[str, Any]) -> dict[str, str]:
    """Those of the alert in these stories."""
    of_the_series = {"AutotunerRollbackFailed": {"knob": "maxNumSeqs"}, "AutotunerWritesWait": {"urgency": "Change"}}
    return {**rule["labels"], **of_the_series.get(rule["alert"], {})}


def told(rule: Mapping[str, Any]) -> dict[str, str]:
    """Its annotations in these stories."""
    text = rule["annotations"]["summary"]
    for template, shown in (("$labels.knob", "maxNumSeqs"), ("$labels.urgency", "Change"), ("$value", "1")):
        text = text.replace(f"{{{{ {template} }}}}", shown)
    return {"summary": text}


@pytest.fixture
def operator() -> Iterator[Operator]:
    """The real loop, which leads, over a service that nobody scrapes; it shows its metrics."""
    found = operating(silent=no_answer())
    port = free_ports(1)[0]
    server, thread = start_http_server(port, addr="127.0.0.1", registry=found.metrics.registry)
    yield Operator(loop=found, address=f"127.0.0.1:{port}")
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
async def prometheus(operator: Operator, binaries: Mapping[str, Path], tmp_path: Path) -> AsyncIterator[Prometheus]:
    """One that scrapes nothing but the operator, with the alerts, and only once that has looked a few times."""
    # Before: of two scrapes with looks between them, five minutes would tell that it does not stand still.
    await operator.loop.ticks(8)
    processes = Processes(logs=tmp_path / "logs", state=StateFile(tmp_path / "bed.json"))
    config = {
        "global": SCRAPE_CONFIG,
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "operator", "static_configs": [{"targets": [operator.address]}]}],
    }
    found = Prometheus(binaries=binaries, processes=processes, data=tmp_path / "data", config=config)
    await found.start()
    yield found
    found.stop()


async def test_a_prometheus_that_scrapes_the_operator_evaluates_every_alert(
    operator: Operator, prometheus: Prometheus
) -> None:
    for selector in sorted({each for rule in RULES for each in selectors(rule["expr"])}):
        await until(f"the operator exports {selector}", partial(prometheus.query, selector), seconds=PATIENCE)

    def pending() -> set[str]:
        found = prometheus.rules()
        assert {rule["name"] for rule in found} == {rule["alert"] for rule in RULES}
        assert not [rule for rule in found if rule["health"] == "err"]
        return {rule["name"] for rule in found if rule["health"] == "ok" and rule["state"] != "inactive"}

    # Its looks are the test's: between them it stands still.
    idle = {"AutotunerBlind", "AutotunerStandsStill"}
    await until("that nobody scrapes a service", lambda: pending() == idle, seconds=PATIENCE)
    operator.loop.leader.is_leader = False
    await operator.loop.tick()
    # Who does not lead may stand still.
    await until("that nobody leads", lambda: pending() == {"AutotunerWithoutLeader"}, seconds=PATIENCE)


def selectors(expression: str) -> list[str]:
    """The series that an expression asks for."""
    return re.findall(r"vllm_autotuner_\w+(?:\{[^}]*\})?", expression)
