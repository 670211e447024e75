"""Declaring handlers: what is refused says what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tallymark.apply.handlers import Handlers
from tallymark.apply.options import Defaults
from tallymark.apply.schemes import SavedId, Scheme, UniqueConstraint, Version
from tallymark.errors import UsageError
from tallymark.policy import Backoff


def plain(message: Any, tx: Any) -> None: ...


def always(message: Any, tx: Any) -> bool:
    return True


def one(message: Any) -> int:
    return 1


def lone(message: Any) -> None: ...


async def coroutine(message: Any, tx: Any) -> None: ...


def generator(message: Any, tx: Any) -> Iterator[None]:
    yield


class Callables:
    def __call__(self, message: Any, tx: Any) -> None: ...

    def method(self, message: Any, tx: Any) -> None: ...

    async def later(self, message: Any, tx: Any) -> None: ...


class CalledLater:
    async def __call__(self, message: Any, tx: Any) -> None: ...


def test_a_handler_takes_the_inboxs_word_unless_it_has_one_of_its_own() -> None:
    defaults = Defaults().changed(attempts=3, permanent=ValueError, handler_timeout=timedelta(seconds=5))
    handlers = Handlers(defaults)
    assert handlers.handler("transfers")(plain) is plain
    handlers.handler("orders", attempts=1, backoff=(2, 8), permanent=(KeyError,), on_dead="skip", max_rate=5)(
        plain
    )
    transfers, orders = handlers.of("transfers"), handlers.of("orders")
    assert handlers.topics == ("transfers", "orders")
    assert (transfers.attempts, transfers.permanent, transfers.handler_timeout_s) == (3, (ValueError,), 5.0)
    assert (transfers.once, transfers.order, transfers.on_dead) == (SavedId(), "key", "hold-key")
    assert (orders.attempts, orders.permanent) == (1, (ValueError, KeyError))
    assert (orders.backoff, orders.on_dead, orders.max_rate) == (Backoff(2.0, 8.0), "skip", 5.0)


@pytest.mark.parametrize("function", [plain, Callables(), Callables().method, functools.partial(plain)])
def test_whatever_can_be_called_with_a_message_and_a_transaction(function: Callable[..., Any]) -> None:
    handlers = Handlers()
    handlers.handler("transfers")(function)
    assert handlers.of("transfers").name


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (coroutine, "is a coroutine function; handlers are plain functions"),
        (Callables().later, "is a coroutine function; handlers are plain functions"),
        (CalledLater(), "is a coroutine function; handlers are plain functions"),
        (functools.partial(coroutine), "is a coroutine function; handlers are plain functions"),
        (generator, "is a generator"),
        (lone, r"does not take \(message, tx\)"),
        (lambda: None, r"does not take \(message, tx\)"),
        ("plain", "is not a function"),
        (Callables, "is not a function"),
    ],
)
def test_what_is_no_handler(function: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        Handlers().handler("transfers")(function)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "über weg"}, "'über weg' is not a topic's name"),
        ({"topic": ""}, "'' is not a topic's name"),
        ({"topic": None}, "None is not a topic's name"),
        ({"model": dict, "decode": bytes}, "both model= and decode="),
        ({"batch": "yes"}, "batch='yes' is neither"),
        ({"once": "saved"}, "once='saved' is not a scheme"),
        ({"once": SavedId}, "once=SavedId is not a scheme"),
        ({"once": None}, "once=None is not a scheme"),
        ({"once": Version(when=always), "batch": True}, "cannot look at a list"),
        ({"order": "none"}, "order='none' is not known"),
        ({"on_dead": "drop"}, "on_dead='drop' is not known"),
        ({"attempts": 0}, "attempts=0 is not a number from 1 up"),
        ({"attempts": True}, "attempts=True is not a number from 1 up"),
        ({"backoff": 5}, "backoff=5 is no back-off"),
        ({"backoff": (5, 1)}, "is no back-off"),
        ({"permanent": "ValueError"}, "permanent='ValueError' is not an exception class"),
        ({"permanent": (KeyboardInterrupt,)}, "is not an exception class"),
        ({"handler_timeout": 0}, "handler_timeout=0 is no time"),
        ({"handler_timeout": "30s"}, "handler_timeout='30s' is no time"),
        ({"max_rate": 0}, "max_rate=0 is no rate"),
        ({"max_rate": float("inf")}, "max_rate=inf is no rate"),
    ],
)
def test_bad_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Handlers().handler(**{"topic": "transfers", **options})


def test_one_topic_one_handler() -> None:
    handlers = Handlers()
    handlers.handler("transfers")(plain)
    with pytest.raises(UsageError, match="topic transfers has two handlers: plain and Callables"):
        handlers.handler("transfers")(Callables().method)
    with pytest.raises(UsageError, match="no handler for topic 'orders'") as refused:
        handlers.of("orders")
    assert refused.value.remedy == "there are handlers for: transfers"


@pytest.mark.parametrize(
    ("scheme", "said"),
    [
        (lambda: UniqueConstraint(""), "names no constraint"),
        (lambda: UniqueConstraint(7), "names no constraint"),  # type: ignore[arg-type]
        (lambda: Version(table="stock"), "needs table, key and column"),
        (lambda: Version(table="stock", key="sku", column=5), "is not a name"),  # type: ignore[arg-type]
        (lambda: Version(value=one), "says nothing without table="),
        (lambda: Version(when=always, of=one), "stands alone"),
        (lambda: Version(of="rev"), "is not a plain function"),  # type: ignore[arg-type]
        (lambda: Version(when=coroutine), "is not a plain function"),  # type: ignore[arg-type]
    ],
)
def test_bad_schemes(scheme: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        scheme()
    assert refused.value.remedy


def test_what_goes_by_versions_is_known_by_topic() -> None:
    """A precondition may be anything: only versions are sure to pass an older message over."""
    handlers = Handlers()
    schemes: dict[str, Scheme] = {
        "position": Version(),
        "business": Version(of=lambda message: int(message.value)),
        "column": Version(table="stock", key="sku", column="version"),
        "precondition": Version(when=lambda _message, _tx: True),
        "saved": SavedId(),
    }
    for topic, once in schemes.items():
        handlers.handler(topic, once=once)(lambda _message, _tx: None)
    assert handlers.versioned == ("position", "business", "column")
