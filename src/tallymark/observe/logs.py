"""Logs: the standard library's, with an `action` on each line, for people or as JSON.

    log = logging.getLogger(__name__)
    log.info("batch sent", extra={"action": "relay.sent", "lane": 3, "messages": 10_000})

Everything given in `extra` is shown. Lines go to stderr, so that stdout stays the verb's result. A line of a
library that knows no actions gets its logger's name as one. Secrets are masked last, over the finished line:
no argument, exception or traceback escapes it.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TextIO

from tallymark.errors import UsageError
from tallymark.observe.masking import mask, masked

ROOT = "tallymark"
KAFKA_CLIENT = "tallymark.kafka.client"

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "action", "taskName"}


class LogFormat(StrEnum):
    """How a line is written."""

    HUMAN = "human"
    JSON = "json"


def _action(record: logging.LogRecord) -> str:
    return str(getattr(record, "action", record.name))


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class HumanFormatter(logging.Formatter):
    """`14:03:07.120 INFO    relay.sent  batch sent  lane=3 messages=10000`"""

    def format(self, record: logging.LogRecord) -> str:
        moment = _moment(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        parts = [f"{moment} {record.levelname:<7} {_action(record)}", record.getMessage()]
        if extras := _extras(record):
            parts.append(" ".join(f"{name}={value}" for name, value in extras.items()))
        line = "  ".join(parts)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return mask(line)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, action, message, logger, and the extras by their names."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "action": _action(record),
            "message": record.getMessage(),
            "logger": record.name,
        }
        for name, value in _extras(record).items():
            # An extra must not overwrite what the line itself says.
            line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Masked value by value, before encoding: masking the finished text could break its quoting.
        return json.dumps(masked(line), ensure_ascii=False)


def level_number(name: str) -> int:
    """The level of this name, or a clear error."""
    number = logging.getLevelNamesMapping().get(name.upper())
    if number is None:
        raise UsageError(
            f"log level {name!r} is not known", remedy="Use one of debug, info, warning, error, critical."
        )
    return number


def configure(
    log_format: LogFormat = LogFormat.HUMAN, level: str = "info", stream: TextIO | None = None
) -> None:
    """Set up our loggers, once or again; the root logger and other libraries' loggers stay as they are."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else HumanFormatter())
    root = logging.getLogger(ROOT)
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level_number(level))
    root.propagate = False


def kafka_client_logger() -> logging.Logger:
    """Where librdkafka's own lines go. They repeat what its errors say: shown with `debug` only."""
    log = logging.getLogger(KAFKA_CLIENT)
    if not any(isinstance(each, _OnlyWhenDebugging) for each in log.filters):
        log.addFilter(_OnlyWhenDebugging())
    return log


class _OnlyWhenDebugging(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if not logging.getLogger(ROOT).isEnabledFor(logging.DEBUG):
            return False
        record.action = "kafka.client"
        return True
