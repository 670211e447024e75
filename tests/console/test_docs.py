"""The examples of docs/api.md run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tallymark.lifecycle import TokenRole
from tests.console.ground import Service

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
EXAMPLES = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 10


@pytest.mark.skipif(os.system("command -v curl jq >/dev/null") != 0, reason="curl and jq are not installed")  # noqa: S605
def test_each_example_runs_as_it_stands(own: Service) -> None:
    environment = {
        **os.environ,
        "URL": own.url,
        "TOKEN": own.tokens[TokenRole.OPERATOR],
        "ID": own.id_at(1),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for example in EXAMPLES:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", example],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert ran.returncode == 0, example + ran.stdout + ran.stderr
        assert ran.stdout.strip(), example
        if "/metrics" not in example:
            told = json.loads(ran.stdout)
            assert ("errors" in told) == ("limit=none" in example), example
    assert not own.value("select paused from tallymark.consumers")
    assert own.value("select count(*) from tallymark.audit where who = 'token operator'") == 2


def test_every_route_stands_on_the_page(own: Service) -> None:
    document = own.get("/v1/openapi.json").json()
    plain = re.sub(r"\b(NAME|LANE|ID)\b", "{}", PAGE)
    for path in document["paths"]:
        if path.startswith("/v1"):
            shape = re.sub(r"\{[^}]*\}", "{}", path)
            for second in ("/resume", "/discard"):  # the second of two that stand in one line
                shape = shape.removesuffix(second)
            assert shape in plain or shape.replace("{}", "ledger") in plain or "messages" in shape, path
