"""One filled database and service for tests that only look; another, put right after each, for those that act."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tallymark.local.cluster import LocalCluster
from tests.console.ground import Service, filled, large, serve


@contextmanager
def made(cluster: LocalCluster) -> Iterator[str]:
    name = f"console_{uuid.uuid4().hex[:8]}"
    yield cluster.database_url(name)
    cluster.drop_database(name)


@pytest.fixture(scope="session")
def shared_database(cluster: LocalCluster) -> Iterator[str]:
    with made(cluster) as url:
        filled(url)
        yield url


@pytest.fixture(scope="session")
def acting_database(cluster: LocalCluster) -> Iterator[str]:
    with made(cluster) as url:
        filled(url)
        yield url


@pytest.fixture(scope="session")
def large_database(cluster: LocalCluster) -> Iterator[str]:
    with made(cluster) as url:
        large(url)
        yield url


@pytest.fixture(scope="session")
def looking(shared_database: str) -> Iterator[Service]:
    """For tests that change nothing. Without Kafka: lag is not known here."""
    service = serve(shared_database, "--wrong-tokens", "1000000")
    with service.child:
        yield service


@pytest.fixture(scope="session")
def _acting(acting_database: str) -> Iterator[Service]:
    service = serve(acting_database, "--wrong-tokens", "1000000")
    with service.child:
        yield service


@pytest.fixture
def own(_acting: Service) -> Iterator[Service]:
    """For tests that act: what they change is put right again."""
    _acting.reset()
    yield _acting
    _acting.reset()
