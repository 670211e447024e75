"""The typed list of metrics, with their help: what is not in `ALL` does not exist."""

from __future__ import annotations

from tallymark.observe.metric import SECONDS, SIZES, WAITS, Kind, Metric

BUILD_INFO = Metric("tallymark_build_info", Kind.GAUGE, "Always 1; the version is its label.", ("version",))

RELAY_SENT = Metric(
    "tallymark_relay_sent_total", Kind.COUNTER, "Messages marked as sent.", ("outbox", "lane")
)
RELAY_BATCHES = Metric(
    "tallymark_relay_batches_total", Kind.COUNTER, "Batches marked as sent.", ("outbox", "lane")
)
RELAY_BATCH_SIZE = Metric(
    "tallymark_relay_batch_messages", Kind.HISTOGRAM, "Messages per batch.", ("outbox",), SIZES
)
RELAY_BATCH_SECONDS = Metric(
    "tallymark_relay_batch_seconds", Kind.HISTOGRAM, "From claim to mark of one batch.", ("outbox",), SECONDS
)
RELAY_BACKLOG = Metric(
    "tallymark_relay_backlog_messages", Kind.GAUGE, "Messages added and not yet sent.", ("outbox",)
)
RELAY_OLDEST_PENDING = Metric(
    "tallymark_relay_oldest_pending_seconds",
    Kind.GAUGE,
    "Age of the oldest message that waits to be sent.",
    ("outbox",),
)
RELAY_LANES_OWNED = Metric(
    "tallymark_relay_lanes_owned", Kind.GAUGE, "Lanes that this process holds a lease on.", ("outbox",)
)
RELAY_IN_DOUBT = Metric(
    "tallymark_relay_in_doubt_resolved_total",
    Kind.COUNTER,
    "Batches whose outcome was unknown and was read from the receipt.",
    ("outbox", "outcome"),
)
RELAY_FENCED = Metric(
    "tallymark_relay_fenced_total",
    Kind.COUNTER,
    "Writes refused because another owner, epoch or version had come first.",
    ("outbox", "by"),
)
RELAY_PARKED = Metric(
    "tallymark_relay_parked_messages",
    Kind.GAUGE,
    "Messages that failed on their own and wait for someone.",
    ("outbox",),
)
RELAY_HELD_TOPICS = Metric(
    "tallymark_relay_held_topics", Kind.GAUGE, "Topics held because all of them fail.", ("outbox",)
)
RELAY_RETRIES = Metric(
    "tallymark_relay_retries_total", Kind.COUNTER, "Batches tried again after a retriable error.", ("outbox",)
)
RELAY_OLDEST_FLOOR = Metric(
    "tallymark_relay_oldest_floor_seconds",
    Kind.GAUGE,
    "Age of the oldest writing transaction that holds the reader back.",
    ("outbox",),
)
RELAY_ACCEPTED_RISKS = Metric(
    "tallymark_relay_accepted_risks",
    Kind.GAUGE,
    "Safety rules switched off by option.",
    ("outbox",),
)
RELAY_LANES_HALTED = Metric(
    "tallymark_relay_lanes_halted", Kind.GAUGE, "Lanes that stand still until somebody looks.", ("outbox",)
)
RELAY_LANES_UNOWNED = Metric(
    "tallymark_relay_lanes_unowned", Kind.GAUGE, "Lanes that no living relay holds.", ("outbox",)
)
RELAY_DELAYED = Metric(
    "tallymark_relay_delayed_messages", Kind.GAUGE, "Messages that wait for their time.", ("outbox",)
)
RELAY_ADDED_TO_LOG = Metric(
    "tallymark_relay_added_to_log_seconds",
    Kind.HISTOGRAM,
    "From a message's id to its mark as sent: of the first message of each batch, which waited longest.",
    ("outbox",),
    WAITS,
)

INBOX_KEPT = Metric(
    "tallymark_inbox_kept_total", Kind.COUNTER, "Messages kept for the first time.", ("consumer",)
)
INBOX_REPEATED = Metric(
    "tallymark_inbox_repeated_total",
    Kind.COUNTER,
    "Messages that came again and changed nothing.",
    ("consumer",),
)
INBOX_APPLIED = Metric("tallymark_inbox_applied_total", Kind.COUNTER, "Messages applied.", ("consumer",))
INBOX_FAILED = Metric(
    "tallymark_inbox_failed_attempts_total", Kind.COUNTER, "Attempts of handlers that failed.", ("consumer",)
)
INBOX_DEAD = Metric(
    "tallymark_inbox_dead_total", Kind.COUNTER, "Messages that became dead letters.", ("consumer",)
)
INBOX_QUARANTINED = Metric(
    "tallymark_inbox_quarantined_total",
    Kind.COUNTER,
    "Messages whose ids cannot be trusted: reused, too old to know, from the future.",
    ("consumer",),
)
INBOX_FENCED = Metric(
    "tallymark_inbox_fenced_total",
    Kind.COUNTER,
    "Partitions whose writes were refused because another owner had come.",
    ("consumer",),
)
INBOX_RERUNS = Metric(
    "tallymark_inbox_reruns_total",
    Kind.COUNTER,
    "Batches run again: a handler failed, a deadlock, a serialization failure.",
    ("consumer",),
)
INBOX_HUNG = Metric(
    "tallymark_inbox_hung_handlers_total",
    Kind.COUNTER,
    "Handlers that took longer than they may and were left behind.",
    ("consumer",),
)
INBOX_BATCH_SIZE = Metric(
    "tallymark_inbox_batch_messages", Kind.HISTOGRAM, "Messages per batch kept.", ("consumer",), SIZES
)
INBOX_BATCH_SECONDS = Metric(
    "tallymark_inbox_batch_seconds", Kind.HISTOGRAM, "Time to keep one batch.", ("consumer",), SECONDS
)
INBOX_PARTITIONS = Metric(
    "tallymark_inbox_partitions_held", Kind.GAUGE, "Partitions that this process reads.", ("consumer",)
)
INBOX_WAITING = Metric(
    "tallymark_inbox_partitions_waiting",
    Kind.GAUGE,
    "Partitions assigned to this process that it may not read: halted, held by another, unreachable.",
    ("consumer",),
)
INBOX_LAG = Metric(
    "tallymark_inbox_lag_messages",
    Kind.GAUGE,
    "Offsets between the position and the log's end, over the partitions that this process reads.",
    ("consumer",),
)
INBOX_LAG_SECONDS = Metric(
    "tallymark_inbox_lag_seconds",
    Kind.GAUGE,
    "Age of the last message kept in the partition that is furthest behind; 0 where none is behind.",
    ("consumer",),
)
INGEST_RATE = Metric(
    "tallymark_ingest_messages_per_second",
    Kind.GAUGE,
    "Messages per second of the last micro-batch that `tallymark pipeline ingest` committed.",
    ("consumer",),
)
INBOX_REBALANCES = Metric(
    "tallymark_inbox_rebalances", Kind.GAUGE, "Rebalances that this process has been through.", ("consumer",)
)
INBOX_LOG_TO_KEPT = Metric(
    "tallymark_inbox_log_to_kept_seconds",
    Kind.HISTOGRAM,
    "From Kafka's time of a message to its being kept: of the first message of each batch.",
    ("consumer",),
    WAITS,
)
INBOX_KEPT_TO_APPLIED = Metric(
    "tallymark_inbox_kept_to_applied_seconds",
    Kind.HISTOGRAM,
    "From kept to applied, where that is not one transaction: of the first message of each claim of a worker.",
    ("consumer",),
    WAITS,
)
INBOX_ADDED_TO_APPLIED = Metric(
    "tallymark_inbox_added_to_applied_seconds",
    Kind.HISTOGRAM,
    "From a message's id to its effect, the whole journey: of the first message of each batch.",
    ("consumer",),
    WAITS,
)

# What one process cannot know of the others, least of all of one that is stopped: told by `tallymark serve`.
CONSUMER_LAG = Metric(
    "tallymark_consumer_lag_messages",
    Kind.GAUGE,
    "Offsets between a consumer's positions and the log's ends, whoever reads them.",
    ("consumer", "database"),
)
CONSUMER_LAG_SECONDS = Metric(
    "tallymark_consumer_lag_seconds",
    Kind.GAUGE,
    "Age of the oldest message in the log that a consumer has not kept; 0 where there is none.",
    ("consumer", "database"),
)
CONSUMER_RETENTION_LEFT = Metric(
    "tallymark_consumer_retention_left_seconds",
    Kind.GAUGE,
    "Time until retention drops the oldest message that a consumer has not kept.",
    ("consumer", "database"),
)
CONSUMER_QUEUED = Metric(
    "tallymark_consumer_queued_messages",
    Kind.GAUGE,
    "Messages kept and not yet applied.",
    ("consumer", "database"),
)
CONSUMER_PARKED_KEYS = Metric(
    "tallymark_consumer_parked_keys",
    Kind.GAUGE,
    "Keys whose first unfinished message failed.",
    ("consumer", "database"),
)
CONSUMER_DEAD = Metric(
    "tallymark_consumer_dead_letters",
    Kind.GAUGE,
    "Dead letters that wait for somebody.",
    ("consumer", "database"),
)
CONSUMER_HALTED = Metric(
    "tallymark_consumer_partitions_halted",
    Kind.GAUGE,
    "Partitions that stand still until somebody looks.",
    ("consumer", "database"),
)
CONSUMER_UNOWNED = Metric(
    "tallymark_consumer_partitions_unowned",
    Kind.GAUGE,
    "Partitions that no living process holds.",
    ("consumer", "database"),
)
CONSUMER_PROCESSES = Metric(
    "tallymark_consumer_processes", Kind.GAUGE, "Living processes of a consumer.", ("consumer", "database")
)
CONSUMER_FENCED = Metric(
    "tallymark_consumer_fenced_writes",
    Kind.GAUGE,
    "Writes of former owners that were refused, since the positions were made.",
    ("consumer", "database"),
)
FINDINGS = Metric(
    "tallymark_findings", Kind.GAUGE, "Messages that the tally found to be out of step.", ("verdict",)
)

# Told by `tallymark pipeline archive --metrics-port`, by the archive's folder.
ARCHIVED = Metric("tallymark_archive_messages_total", Kind.COUNTER, "Messages archived.", ("archive",))
ARCHIVE_BATCH_SECONDS = Metric(
    "tallymark_archive_batch_seconds", Kind.HISTOGRAM, "Time to archive one batch.", ("archive",), WAITS
)
ARCHIVE_LAG = Metric(
    "tallymark_archive_lag_messages",
    Kind.GAUGE,
    "Offsets between what is archived and the logs' ends.",
    ("archive",),
)
ARCHIVE_RETENTION_LEFT = Metric(
    "tallymark_archive_retention_left_seconds",
    Kind.GAUGE,
    "Time until retention may drop the oldest message that is not archived; none where there is no such message.",
    ("archive",),
)
ARCHIVE_TROUBLES = Metric(
    "tallymark_archive_partitions_in_trouble",
    Kind.GAUGE,
    "Partitions and topics that cannot be archived further: expired, cut back, made anew, gone.",
    ("archive",),
)

API_REQUESTS = Metric(
    "tallymark_api_requests_total",
    Kind.COUNTER,
    "Requests answered, by the route's pattern.",
    ("method", "route", "status"),
)
API_SECONDS = Metric(
    "tallymark_api_request_seconds", Kind.HISTOGRAM, "Time to answer a request.", ("route",), SECONDS
)
API_REFUSED = Metric(
    "tallymark_api_refused_total",
    Kind.COUNTER,
    "Requests that nobody came with, or somebody who may not.",
    ("why",),
)
API_STREAMED = Metric(
    "tallymark_api_streamed_bytes_total", Kind.COUNTER, "Bytes of messages that were streamed."
)
POOL_IN_USE = Metric(
    "tallymark_pool_connections_in_use", Kind.GAUGE, "Connections that requests hold now.", ("database",)
)
POOL_SIZE = Metric("tallymark_pool_connections", Kind.GAUGE, "Connections at most.", ("database",))
DATABASE_UP = Metric(
    "tallymark_database_up", Kind.GAUGE, "1 where the database answered this time.", ("database",)
)
KAFKA_UP = Metric("tallymark_kafka_up", Kind.GAUGE, "1 where Kafka answered this time.")

ALL: tuple[Metric, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Metric))
