"""Dashboard and alerts ask for metrics that a run tells, in expressions and fields of the right shape."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from services.runs.tracking.prometheus import names

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
ALERTS = yaml.safe_load((MONITORING / "alerts.yaml").read_text())


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def asked_for(expression: str) -> set[str]:
    return set(re.findall(r"\bray_\w+", expression))


def panels() -> list[tuple[str, list[str]]]:
    return [
        (panel["title"], [target["expr"] for target in panel["targets"]]) for panel in DASHBOARD["panels"]
    ]


def test_every_metric_of_an_alert_exists() -> None:
    for rule in rules():
        assert asked_for(rule["expr"]), rule["alert"]
        assert asked_for(rule["expr"]) <= names(), rule["alert"]


def test_the_alerts_that_were_promised_are_there() -> None:
    alerts = {rule["alert"]: rule for rule in rules()}
    for name, metric in (
        ("WhetstoneRunIsStuck", "ray_whetstone_last_progress_timestamp_seconds"),
        ("WhetstoneRewardFails", "ray_whetstone_reward_failures_total"),
        ("WhetstoneKlRunsAway", "ray_whetstone_kl_mean"),
    ):
        assert metric in asked_for(alerts[name]["expr"])
    for rule in rules():
        assert re.fullmatch(r"\d+[mh]", rule["for"]) and rule["labels"]["severity"] in ("warning", "critical")
        assert "$labels.run" in rule["annotations"]["summary"] and rule["annotations"]["description"]
        assert "by (run)" in rule["expr"]


def test_every_metric_of_the_dashboard_exists_and_each_is_shown() -> None:
    shown: set[str] = set()
    for title, expressions in panels():
        for expression in expressions:
            assert asked_for(expression) and asked_for(expression) <= names(), title
            shown |= asked_for(expression)
    assert shown == names()


def test_the_dashboards_panels_do_not_overlap_and_use_its_variables() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
        assert all('run=~"$run"' in target["expr"] for target in panel["targets"]), panel["title"]
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"source", "run"}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_reads_the_alerts() -> None:
    configuration = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
    assert all((MONITORING / name).exists() for name in configuration["rule_files"])
    assert configuration["scrape_configs"]
    monitor = yaml.safe_load((MONITORING.parent / "kuberay/podmonitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    job = yaml.safe_load((MONITORING.parent / "kuberay/rayjob.yaml").read_text())
    (head,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert endpoint["port"] in {port["name"] for port in head["ports"]}
