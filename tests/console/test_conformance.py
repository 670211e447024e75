"""The live service and its own document: schemathesis asks what the document allows, and what it does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tallymark.lifecycle import TokenRole
from tests.console.ground import Service, filled, serve

# An admin may do everything, also revoke the token that it came with; a message's own contents are not generated.
LEFT_OUT = ["/v1/tokens/{token}/revoke"]


def asked(service: Service, folder: Path, *, examples: int, seed: int = 8) -> str:
    """Run schemathesis as a process of its own; gives back what it said."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/v1/openapi.json"),
        *("--header", f"Authorization: Bearer {service.tokens[TokenRole.ADMIN]}"),
        *("--max-examples", str(examples), "--seed", str(seed), "--checks", "all", "--continue-on-failure"),
        *("--phases", "examples,coverage,fuzzing", "--workers", "1", "--request-timeout", "30"),
        *("--suppress-health-check", "all"),
        *(f"--exclude-path={path}" for path in LEFT_OUT),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, timeout=1200)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.timeout(300)
def test_the_service_keeps_to_its_document(own: Service, tmp_path: Path) -> None:
    told = asked(own, tmp_path, examples=2)
    assert own.get("/healthz", None).status_code == 200
    assert "console.bug" not in own.child.output
    generated = re.search(r"([\d,]+) generated", told)
    assert generated is not None, told[-3000:]
    assert int(generated.group(1).replace(",", "")) > 300


@pytest.mark.full
@pytest.mark.timeout(1300)
def test_it_keeps_to_it_however_long_it_is_asked(database: str, tmp_path: Path) -> None:
    filled(database)
    service = serve(database, "--wrong-tokens", "1000000")
    with service.child:
        asked(service, tmp_path, examples=200, seed=88)
        assert "console.bug" not in service.child.output


def test_every_route_has_an_example_and_says_how_it_can_fail(looking: Service) -> None:
    document = looking.get("/v1/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            assert route.get("description") or route.get("summary"), (method, path)
            if path.startswith("/v1"):
                assert {"401", "403", "422", "429", "503"} <= route["responses"].keys(), (method, path)
                problem = route["responses"]["401"]["content"]["application/problem+json"]
                assert problem["schema"]["$ref"].endswith("/Problem")
                assert route["security"], (method, path)
    assert "examples" in json.dumps(document["components"]["schemas"]["Message"])
