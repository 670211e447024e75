"""A set of jars is whole or absent, whatever happens to the fetch or to the disk."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallymark.errors import Problem, Unreachable
from tallymark.local.jars import JarSet, JarStore
from tallymark.local.java import find_java
from tests.children import start_child

SMALL = JarSet("small", ("org.slf4j:slf4j-api:1.7.36", "org.postgresql:postgresql:42.7.8"))
# The host is found and refuses: as good as no network, and quick.
NO_NETWORK = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1"
FETCH = """
import sys
from pathlib import Path
from tallymark.local.jars import JarStore
from tallymark.local.java import find_java
from tests.local.test_jars import SMALL
JarStore(find_java(), Path(sys.argv[1])).ensure([SMALL], print)
"""


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache filled by two processes at once, after a third was killed just before it was done."""
    cache = tmp_path_factory.mktemp("cache")
    root = Path(__file__).parents[2]
    with start_child(["-c", FETCH, str(cache)], crash_point="local.jars_fetched", cwd=root) as killed:
        assert killed.wait(240) == -signal.SIGKILL, killed.output
    assert JarStore(find_java(), cache).fault(SMALL) == "is missing"
    with (
        start_child(["-c", FETCH, str(cache)], cwd=root) as one,
        start_child(["-c", FETCH, str(cache)], cwd=root) as two,
    ):
        assert (one.wait(240), two.wait(240)) == (0, 0), one.output + two.output
        assert ("fetching" in one.output) != ("fetching" in two.output), "it was fetched twice"
    return cache


@pytest.fixture
def cache(fetched: Path, tmp_path: Path) -> Path:
    shutil.copytree(fetched, tmp_path / "cache")
    return tmp_path / "cache"


def test_whole_after_a_killed_fetch_and_two_at_once(fetched: Path) -> None:
    assert JarStore(find_java(), fetched).fault(SMALL) == ""
    assert not list((fetched / "jars").glob(".fetch-*")), "the killed fetch left its folder behind"


def test_each_damage_is_seen(cache: Path) -> None:
    store = JarStore(find_java(), cache)
    jar = store.folder(SMALL) / "postgresql-42.7.8.jar"
    whole = jar.read_bytes()
    jar.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert store.fault(SMALL) == "holds a damaged postgresql-42.7.8.jar"
    jar.unlink()
    assert store.fault(SMALL) == "lacks postgresql-42.7.8.jar"
    jar.write_bytes(whole)
    (store.folder(SMALL) / "stray.jar").write_bytes(b"")
    assert "stray.jar" in store.fault(SMALL)
    (store.folder(SMALL) / "manifest.json").write_text("{")
    assert store.fault(SMALL) == "is damaged"


def test_a_damaged_set_is_fetched_again(cache: Path) -> None:
    store = JarStore(find_java(), cache)
    (store.folder(SMALL) / "postgresql-42.7.8.jar").write_bytes(b"nonsense")
    said: list[str] = []
    store.ensure([SMALL], said.append)
    assert "holds a damaged postgresql-42.7.8.jar: fetching it again" in said[0]
    assert store.fault(SMALL) == ""


def test_no_network_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = find_java()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", NO_NETWORK)
    with pytest.raises(Unreachable, match="could not be fetched from Maven Central") as raised:
        JarStore(java, tmp_path).ensure([SMALL])
    assert "TALLYMARK_CACHE" in raised.value.remedy
    assert [path.name for path in (tmp_path / "jars").iterdir()] == ["lock"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk can only be mounted by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_one_clear_line_and_leaves_nothing(full_disk: Path) -> None:
    with pytest.raises(Problem, match=r"disk is full|No space left") as raised:
        JarStore(find_java(), full_disk).ensure([SMALL])
    assert "TALLYMARK_CACHE" in raised.value.remedy
    assert [path.name for path in (full_disk / "jars").iterdir()] == ["lock"]
