"""A real Prometheus, where it is installed: it takes our rules, scrapes us, and its alert fires and clears."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml

from tallymark.lifecycle import Role, TokenRole
from tallymark.store.postgres.migrations import migrate
from tests.console.ground import Service, serve
from tests.inbox.ground import TABLES, Ground
from tests.waiting import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: apt install prometheus)"
)


@needs_promtool
def test_promtool_takes_the_rules_and_the_settings(tmp_path: Path) -> None:
    for file in ("alerts.yml", "prometheus.yml"):
        shutil.copy(DEPLOY / file, tmp_path)
    text = (tmp_path / "prometheus.yml").read_text().replace("/etc/prometheus/tallymark-token", "token")
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "token").write_text("x")
    for what in (["rules", "alerts.yml"], ["config", "prometheus.yml"]):
        ran = subprocess.run(
            ["promtool", "check", *what], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(folder: Path, service: Service) -> Path:
    """The rules as they are delivered, quicker: what waits for a minute waits for a moment."""
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
            rule["expr"] = rule["expr"].replace("_seconds > 60", "_seconds > 3")
    (folder / "alerts.yml").write_text(yaml.safe_dump(rules))
    (folder / "token").write_text(service.tokens[TokenRole.VIEWER])
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {
                "job_name": "tallymark-serve",
                "authorization": {"credentials_file": "token"},
                "static_configs": [{"targets": [service.url.removeprefix("http://")]}],
            }
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


def firing(prometheus: str) -> set[str]:
    try:
        answer = httpx.get(f"{prometheus}/api/v1/alerts", timeout=30).raise_for_status()
    except httpx.HTTPError:  # it is still starting
        return set()
    found = answer.json()["data"]["alerts"]
    return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}


@needs_prometheus
@pytest.mark.full
@pytest.mark.timeout(180)
def test_an_alert_fires_when_a_consumer_is_stopped_and_clears_when_it_is_started(
    database: str, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    migrate(database, role=Role.CONSUMER)
    with psycopg.connect(database) as connection:
        connection.execute(TABLES.encode())
    ground = Ground(database, bootstrap_servers, topic)
    ground.send(50)
    ground.apply_all(50)
    service = serve(database, bootstrap_servers=bootstrap_servers)
    port = free_port()
    with service.child:
        command = [
            *("prometheus", f"--config.file={settings(tmp_path, service)}"),
            *(f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"),
        ]
        with (tmp_path / "prometheus.log").open("w") as log:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: "TallymarkConsumerDown" in firing(url), what="no process: an alert")
            ground.send(20)
            wait_for(lambda: "TallymarkLagSeconds" in firing(url), what="behind: an alert")
            with ground.inbox() as inbox:
                ground.wait_applied(70, inbox)
                wait_for(
                    lambda: not {"TallymarkConsumerDown", "TallymarkLagSeconds"} & firing(url),
                    what="started: the alerts clear",
                )
        finally:
            process.terminate()
            process.wait()
