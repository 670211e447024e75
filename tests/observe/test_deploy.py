"""The dashboard and the alert rules name metrics that exist, and each alert has its page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tallymark.local.jmx import SERIES
from tallymark.observe.metric import Kind
from tallymark.observe.names import ALL

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
# What the node exporter tells on every Linux machine, and Prometheus itself.
ELSEWHERE = {
    "up",
    "node_filesystem_avail_bytes",
    "node_filesystem_size_bytes",
    "node_memory_MemAvailable_bytes",
    "node_memory_MemTotal_bytes",
    "node_cpu_seconds_total",
    "node_network_receive_bytes_total",
    "node_network_transmit_bytes_total",
}
WORD = re.compile(r"\b(?:up|tallymark_\w+|kafka_\w+|jvm_\w+|node_\w+|process_\w+)\b")


def known() -> set[str]:
    names = set(ELSEWHERE) | set(SERIES)
    for metric in ALL:
        names.add(metric.name)
        if metric.kind is Kind.HISTOGRAM:
            names |= {f"{metric.name}_{end}" for end in ("bucket", "sum", "count")}
    return names


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_name_in_the_alert_rules_exists() -> None:
    for rule in rules():
        used = set(WORD.findall(re.sub(r"\{[^}]*\}", "", rule["expr"])))
        assert used, rule["alert"]
        assert used <= known(), rule["alert"]


def test_every_name_in_the_dashboard_exists() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    used: set[str] = set()
    for target in (each for panel in panels for each in panel.get("targets", [])):
        found = set(WORD.findall(re.sub(r"\{[^}]*\}|by \([^)]*\)", "", target["expr"])))
        assert found, target["expr"]
        used |= found
    assert used <= known()
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_dashboard_shows_most_of_what_is_told() -> None:
    text = (DEPLOY / "grafana.json").read_text() + (DEPLOY / "alerts.yml").read_text()
    shown = [metric for metric in ALL if metric.name in text]
    assert len(shown) > 0.6 * len(ALL)


def test_what_alerts_speak_of_is_scraped() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    jobs = {each["job_name"] for each in scraped}
    text = (DEPLOY / "alerts.yml").read_text()
    assert set(re.findall(r'job="([^"]+)"', text)) <= jobs
    # These are told by the processes themselves; whether one is there to tell is a rule of its own.
    for process in ("relay", "archive"):
        assert re.search(rf"tallymark_{process}_", text)
        assert f"tallymark-{process}" in jobs
    assert 'up{job="tallymark-archive"} == 0' in text


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_each_alert_has_its_page(rule: dict[str, Any]) -> None:
    page = ROOT / rule["annotations"]["runbook"]
    text = page.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    assert "## Look" in text
    assert "## Do" in text
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_each_page_has_its_alert() -> None:
    named = {Path(rule["annotations"]["runbook"]).name for rule in rules()}
    assert {page.name for page in (ROOT / "docs" / "runbooks").glob("*.md")} - {"index.md"} == named


def test_links_between_pages_lead_somewhere() -> None:
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        for link in re.findall(r"\]\(([^)]+\.md)\)", page.read_text()):
            assert (page.parent / link).is_file(), f"{page.name}: {link}"
