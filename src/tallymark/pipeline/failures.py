"""What Spark and Java say, in our words: one line with what was wrong and what to do."""

from __future__ import annotations

import re

from tallymark.errors import Problem, Stale, TallymarkError, Unreachable

# Nothing can be run in a session whose Spark has ended: to try again would fail until patience ends.
_OVER = "Spark itself has ended, and nothing more can be run in it"
_AGAIN = (
    "start the job again: nothing is half-done; look first at the cluster, or for what killed it (memory)"
)

# Whoever asks: jobs that go on try again by themselves, and say so when they do; a tally or a replay does not.
_ANEW = "run it again, where it does not try by itself"

# PostgreSQL's codes for what no message brings about and somebody sees to: no room or memory, read only for now.
WAITED_OUT = r"\((?:53\w{3}|25006), "

# In the order of telling: the first that is found counts.
_KNOWN: tuple[tuple[str, type[TallymarkError], str, str], ...] = (
    (
        r"(SparkContext was shut down|Master removed our application|on a stopped SparkContext|"
        r"while trying to connect to the Java server|Answer from Java side is empty)",
        Problem,
        _OVER,
        _AGAIN,
    ),
    (
        # No room, or a server that has become a replica: PostgreSQL's, and it passes.
        rf"tallymark\.errors\.\w+: (PostgreSQL says: [^\n]*{WAITED_OUT}[^\n]*)",
        Unreachable,
        "{1}",
        "it is tried again, while --patience lasts; see to the database",
    ),
    (
        # What else a task was refused: in its own words, which are ours.
        r"tallymark\.errors\.(Problem|SchemaMismatch|SettingsError): ([^\n]*)",
        Problem,
        "{2}",
        "--verbose shows all of it",
    ),
    (
        # A run that came meanwhile has dropped them: whoever takes the positions again makes them anew.
        r"StagingLost: ([^\n]*)",
        Stale,
        "{1}",
        "it is loaded again",
    ),
    (
        r"(Unreachable|OutcomeUnknown): ([^\n]*)",
        Unreachable,
        "a task lost its connection: {2}",
        "check that the executors reach the database",
    ),
    (
        r"AccessDenied: ([^\n]*)",
        Unreachable,
        "a task was refused: {1}",
        "check the rights of the database's user",
    ),
    (
        r"ModuleNotFoundError: No module named '([^']+)'",
        Problem,
        "the executors do not have the Python module {1}",
        "take it along: `tallymark pipeline submit --dry-run` shows how",
    ),
    (
        # Between taking the positions and the query's start: an ingest takes them again, with what was added.
        # Whoever names its partitions meets it where a topic was made anew with fewer.
        r"(you must specify all TopicPartitions|don't match what are assigned)",
        Stale,
        "partitions were added to a topic, or have gone, since its positions were taken",
        _ANEW,
    ),
    (
        # With Trigger.AvailableNow, where brokers do not agree yet. What is gone is found when positions are taken.
        r"The error could be transient - restart your query",
        Unreachable,
        "Kafka tells Spark now this and now that of its partitions and where they end",
        f"look at the brokers if it goes on; {_ANEW}",
    ),
    (
        r"(UnknownTopicOrPartitionException|UNKNOWN_TOPIC_OR_PARTITION)[^\n]*",
        Problem,
        "a topic is not there any more",
        "look with `tallymark topics check`",
    ),
    (
        r"(Some data may have been lost|KAFKA_DATA_LOSS|OffsetOutOfRange|Cannot fetch offset)[^\n]*",
        Unreachable,
        "Kafka does not have what was to be read",
        f"retention or DeleteRecords passed it meanwhile, or the log was cut back: {_ANEW}",
    ),
    (
        # Its own time-outs alone: Spark's parts have theirs with each other.
        r"(kafka\.common\.errors\.TimeoutException|Timed out waiting for a node assignment|"
        r"Timeout of \d+ ?ms expired before|DisconnectException|Failed to construct kafka|"
        r"Failed to create new KafkaAdminClient)[^\n]*",
        Unreachable,
        "Kafka cannot be reached by Spark",
        "check that the brokers are up and reachable from where Spark runs",
    ),
    (
        r"(SaslAuthenticationException|TopicAuthorizationException|GroupAuthorizationException)[^\n]*",
        Unreachable,
        "Kafka refuses Spark: {0}",
        "check kafka.client in the settings, and the ACLs",
    ),
    (
        r"(ExecutorLostFailure|Lost executor|Job aborted due to stage failure: [^\n]*SIGKILL|"
        r"Python worker exited unexpectedly)",
        Unreachable,
        "Spark lost the executors that were at work",
        f"look at the cluster if it goes on; {_ANEW}",
    ),
    (
        r"(RpcTimeoutException|Futures timed out|concurrent\.TimeoutException)",
        Unreachable,
        "Spark's own parts did not answer each other in time",
        f"look whether the driver or the cluster has too much to do; {_ANEW}",
    ),
    (
        r"No space left on device",
        Problem,
        "the disk is full where Spark works",
        "free some, or set SPARK_LOCAL_DIRS",
    ),
)


def explain(error: BaseException) -> TallymarkError:
    """The same failure in our words."""
    if isinstance(error, TallymarkError):
        return error
    if is_from_nobody(error):
        return Problem(_OVER, remedy=_AGAIN)
    text = str(error)
    for pattern, kind, sentence, remedy in _KNOWN:
        if found := re.search(pattern, text):
            said = sentence.format(found.group(0), *found.groups())
            return kind(said.strip(), remedy=remedy)
    telling = [line.strip() for line in text.splitlines() if "Exception" in line or "Error" in line]
    last = telling[-1] if telling else (text.strip().splitlines() or [type(error).__name__])[0]
    return Problem(f"Spark failed: {last[:300]}", remedy="--verbose shows all of it")


def is_from_nobody(error: BaseException) -> bool:
    """Whether it says that nobody is there to talk to: Spark's JVM was killed, or has crashed.

    By its class: what Java says of connections to Kafka comes as text.
    """
    if isinstance(error, ConnectionError):
        return True
    if not type(error).__module__.startswith("py4j"):
        return False
    # A call that the JVM did not answer any more has this much to say, and no more.
    unanswered = re.fullmatch(r"An error occurred while calling \S+", str(error).strip())
    return type(error).__name__ == "Py4JNetworkError" or unanswered is not None
