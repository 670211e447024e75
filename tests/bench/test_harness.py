"""Interleaving, payloads, and children whose use of the machine is known beforehand."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from bench.child import measure_child, start_child
from bench.harness import Sample, interleave, measure_here, rows_for
from bench.payloads import KEYS, payloads
from bench.registry import find, load

from tallymark.errors import Problem, UsageError

ROOT = Path(__file__).parents[2]


def test_repetitions_take_turns_and_the_warm_up_is_thrown_away() -> None:
    order: list[str] = []

    def measure(name: str) -> Sample:
        order.append(name)
        return Sample(len(order), 1.0, 0.0, 0)

    samples = interleave({"a": lambda: measure("a"), "b": lambda: measure("b")}, 2)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert {name: [one.count for one in taken] for name, taken in samples.items()} == {
        "a": [3, 5],
        "b": [4, 6],
    }


def test_rows_give_rate_cpu_and_memory_beside_the_yardstick() -> None:
    ours, against = Sample(1_000, 2.0, 0.5, 50_000_000), Sample(1_000, 1.0, 0.25, 100_000_000)
    rows = rows_for("drain", [ours], [against])
    assert [(one.unit, one.ours, one.against) for one in rows] == [
        ("messages/s", 500.0, 1_000.0),
        ("µs/message", 500.0, 250.0),
        ("MB", 50.0, 100.0),
    ]


def test_payloads_are_json_of_200_bytes_over_1000_keys_and_hard_to_compress() -> None:
    sent = list(payloads(20_000))
    assert len({one.key for one in sent}) == KEYS
    assert all(json.loads(one.value)["account"] == one.key.decode() for one in sent[:100])
    assert 190 <= sum(len(one.value) for one in sent) / len(sent) <= 210
    together = b"".join(one.value for one in sent)
    assert len(zlib.compress(together)) > 0.45 * len(together)


def test_payloads_depend_on_the_seed_alone() -> None:
    assert list(payloads(50, seed=1)) == list(payloads(50, seed=1))
    assert list(payloads(50, seed=1)) != list(payloads(50, seed=2))


def test_a_childs_memory_and_cpu_are_its_own() -> None:
    ours = bytearray(300_000_000)  # must not be charged to the child
    small = measure_child([sys.executable, "-c", "pass"])
    large = measure_child([sys.executable, "-c", "print(len(bytes(1) * 200_000_000))"])
    assert len(ours) == 300_000_000
    assert small.peak_rss < 60_000_000
    assert 200_000_000 < large.peak_rss < 280_000_000
    assert large.output == "200000000\n"


def test_cpu_time_covers_what_the_child_waited_for() -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    usage = measure_child([sys.executable, "-c", program])
    assert usage.cpu_seconds >= 0.5
    assert usage.seconds >= 0.4


def test_a_failing_child_is_an_error_with_what_it_wrote() -> None:
    with pytest.raises(Problem, match="failed") as caught:
        measure_child([sys.executable, "-c", "import sys; sys.exit('no such topic')"])
    assert "no such topic" in caught.value.remedy


def test_a_running_child_can_be_told_to_stop_and_is_still_measured() -> None:
    program = (
        "import signal, sys, threading\n"
        "done = threading.Event()\n"
        "signal.signal(signal.SIGTERM, lambda *_: done.set())\n"
        "print('ready', flush=True)\n"
        "done.wait(60)\n"
        "print('stopped')\n"
    )
    with start_child([sys.executable, "-c", program]) as child:
        assert child.read_line() == "ready"
        child.stop()
        assert child.finish(timeout=30).output == "stopped\n"


def test_work_in_this_process_is_measured_too() -> None:
    sample = measure_here(lambda: sum(1 for _ in range(200_000)))
    assert sample.count == 200_000
    assert sample.seconds > 0
    assert sample.cpu_seconds > 0
    assert sample.peak_rss > 1_000_000


def test_benchmarks_are_found_by_name() -> None:
    assert "cluster" in load()
    assert [one.name for one in find("cluster")] == ["cluster"]
    assert [one.name for one in find("all")] == list(load())
    with pytest.raises(UsageError, match="no benchmark 'clutser'"):
        find("clutser")


@pytest.mark.parametrize(("arguments", "status"), [(["list", "--json"], 0), (["clutser"], 2)])
def test_the_command_line_lists_and_refuses(arguments: list[str], status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    if status == 0:
        assert "cluster" in [one["name"] for one in json.loads(done.stdout)]
