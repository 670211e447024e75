"""Publishes a lane's batches: in Kafka transactions with a receipt each, or as an idempotent producer.

`send` starts a batch; `finish` says what became of the oldest one started:

- `Sent`: acknowledged by all in-sync replicas, in the log;
- `Refused`: the transaction cannot be committed for some message's sake; nothing of the batch is in the log;
- `Rejected`: these messages can never be published as they are. In a transaction nothing of the batch is in the log
  then; without one, everything else is;
- `Unknown`: neither done nor failed, and this publisher is of no more use.

Transactions take two producers in turn (producers.py). The next is begun when the one before it is committed, so messages
stand in the log in the order of their batches.

On the happy path no message has a callback of its own in a transaction: the commit is the proof. Only where a commit is
refused does `examine` produce the batch once more, with callbacks, and abort it, to learn which message it was. It
fences anew, so it is for the lane's owner only, in the thread that knows of the lease.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from tallymark.broker import faults, fencing, receipts
from tallymark.broker.flight import Flight
from tallymark.broker.handover import Handover
from tallymark.broker.judging import AT_A_TIME, judge, passes, tell_apart
from tallymark.broker.kafka import KafkaError, KafkaException, Message, Producer
from tallymark.broker.patience import Pace
from tallymark.broker.producers import LaneProducers, PublisherSettings
from tallymark.broker.verdicts import CONSEQUENCES, Scope, scope_of
from tallymark.crashpoint import reached
from tallymark.errors import OutcomeUnknown, Unreachable
from tallymark.relay.ports import (
    Batch,
    Outcome,
    Receipt,
    Refused,
    Rejected,
    Row,
    Sent,
    TopicRecord,
    Unknown,
)

_O = TypeVar("_O", bound=Outcome)

_COMMIT_SLICE_S = 1.0


class KafkaPublisher:
    """One lane's batches on their way, by its producers."""

    def __init__(
        self, settings: PublisherSettings, topics: Sequence[TopicRecord], pace: Pace | None = None
    ) -> None:
        self._settings = settings
        self._pace = pace or Pace(settings.transaction_timeout_s)
        self._transactional = settings.policy.transactional
        self._receipts = receipts.topic_of(settings.identity, settings.prefix)
        self._flights: deque[Flight] = deque()
        self._clock_ms = 0
        self._refusal: KafkaError | None = None
        self._producers = LaneProducers(settings, topics)
        self._handover = Handover(self._producers)
        for record in topics:
            self._handover.note(record)

    @property
    def _producer(self) -> Producer:
        return self._producers.now

    def fence(self) -> None:
        if not self._transactional:
            return
        try:
            self._producers.fence()
        except Unreachable as refusal:
            if fencing.is_too_long(refusal):
                self._pace.was_refused(self._settings.transaction_timeout_s)
            raise

    def last_receipt(self, after: Receipt | None) -> Receipt | None:
        if not self._transactional:
            return after
        s = self._settings
        return receipts.last(s.client, s.identity, s.lane, s.prefix, after, self._producers.patience)

    def send(self, batch: Batch, rows: Sequence[Row]) -> None:
        self._producers.turn()
        self._clock_ms, self._refusal = batch.clock_ms, None
        flight = Flight(rows)
        self._flights.append(flight)
        try:
            if self._transactional:
                self._producer.begin_transaction()
            self._produce(flight, careful=not self._transactional)
            if self._transactional:
                self._produce_receipt(flight, batch)
        except KafkaException as error:
            raise OutcomeUnknown(
                f"batch {batch.number} could not be begun: {faults.explain(error)}"
            ) from error

    def finish(self) -> Outcome:
        flight = self._flights.popleft()
        ask = self._commit if self._transactional else self._acknowledged
        outcome = self._in_time(partial(ask, flight), flight.began)
        if isinstance(outcome, Sent):
            self._pace.landed(time.monotonic() - flight.began)
        return outcome

    def examine(self, rows: Sequence[Row]) -> Rejected | Unknown:
        return self._in_time(partial(self._why_refused, rows), time.monotonic())

    def outgrown(self) -> bool:
        return self._pace.seconds < self._settings.transaction_timeout_s

    def _in_time(self, ask: Callable[[], _O], began: float) -> _O | Unknown:
        outcome, given = self._outcome(ask), self._settings.transaction_timeout_s
        if isinstance(outcome, Unknown) and time.monotonic() - began >= given:
            self._pace.was_late(given)
        return outcome

    def _outcome(self, ask: Callable[[], _O]) -> _O | Unknown:
        try:
            return ask()
        except (Unreachable, OutcomeUnknown) as error:
            return Unknown(str(error))
        except KafkaException as error:
            return Unknown(str(faults.explain(error)))
        except SystemError as error:
            # The client's own way to say that a fatal error (fenced) came while it flushed: the cause tells which.
            if not isinstance(error.__cause__, KafkaException):
                raise
            return Unknown(str(faults.explain(error.__cause__)))

    def learn(self, record: TopicRecord) -> bool:
        self._handover.note(record)
        return self._producers.fit(record)

    def hurry(self, within_s: float) -> None:
        self._producers.patience.hurry(within_s)

    def close(self) -> None:
        # A commit under way in another thread is in doubt, and not waited for.
        self._producers.patience.hurry(0.0)
        self._producers.close()

    # Producing

    def _produce(self, flight: Flight, *, careful: bool) -> None:
        halfway = len(flight.rows) // 2
        self._hand_over(flight, flight.rows[:halfway], careful=careful)
        reached("relay.mid_produce")
        self._hand_over(flight, flight.rows[halfway:], careful=careful)

    def _hand_over(self, flight: Flight, rows: Sequence[Row], *, careful: bool) -> None:
        self._handover.rows(flight, rows, self._clock_ms, careful=careful)

    def _produce_receipt(self, flight: Flight, batch: Batch) -> None:
        def written(error: KafkaError | None, message: Message) -> None:
            flight.receipt_error = error
            if error is None:
                flight.receipt = Receipt(batch.number, batch.token, message.offset() or 0, lane=batch.lane)

        identity, lane = self._settings.identity, self._settings.lane
        text, key = receipts.written(identity, batch), receipts.key_of(identity, lane)
        produce = partial(self._producer.produce, timestamp=batch.clock_ms)
        self._handover.put(partial(produce, self._receipts, text, key, lane, written))

    # In a transaction

    def _commit(self, flight: Flight) -> Outcome:
        if flight.failures or flight.invalid:
            return Refused()
        reached("relay.before_flush")
        self._producer.flush(_COMMIT_SLICE_S)
        reached("relay.before_kafka_commit")
        goes_on = self._producers.patience.begin()
        while True:
            try:
                # In slices: a commit whose messages can never be acknowledged says so only when it is called again.
                self._producer.commit_transaction(_COMMIT_SLICE_S)
                break
            except KafkaException as error:
                cause = faults.error_of(error)
                if cause.retriable() and goes_on():
                    continue
                if not cause.txn_requires_abort():
                    raise
                # _INCONSISTENT: some messages failed, and only their own reports say why.
                if scope_of(cause.code()) is Scope.PASSING and cause.code() != KafkaError._INCONSISTENT:
                    return Unknown(passes(cause))
                said = flight.receipt_error
                if said is not None and said.code() not in CONSEQUENCES:
                    return self._without_receipt(said)
                self._refusal = cause if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else None
                return Refused()
        reached("relay.after_kafka_commit")
        return Sent(flight.receipt)

    def _why_refused(self, rows: Sequence[Row]) -> Rejected | Unknown:
        """Nothing is in the log. Produce once more, with callbacks, and abort, to learn which messages it was."""
        self._producers.renew()
        probe = self._probe(rows)
        if self._refusal is not None and not probe.failures and not probe.invalid:
            # What is denied before it is sent has no report; and nothing else was in that transaction.
            return self._without_receipt(self._refusal)
        tell_apart(probe, self._fail)
        self._find_others_too_large(probe)
        return judge(probe, self._fail, transactional=True)

    def _find_others_too_large(self, probe: Flight) -> None:
        """Where one is, others may be: each by itself would cost a round of the whole batch.

        Small ones that are blamed beside it shared a record batch, and go with the next try.
        """
        large = [each for each in probe.too_large if self._handover.may_be_too_large(each[0])]
        if not large:
            return
        suspects, found = [row for row in probe.rows if self._handover.may_be_too_large(row)], large
        while found and len(large) < AT_A_TIME:
            known = {row[0] for row, _ in large}
            suspects = [row for row in suspects if row[0] not in known]
            found = self._probe(suspects).too_large if suspects else []
            large += found
        blamed = {row[0] for row, _ in probe.too_large}
        probe.failures = [each for each in probe.failures if each[0][0] not in blamed] + large

    def _without_receipt(self, error: KafkaError) -> Unknown:
        return Unknown(
            f"the batch's receipt cannot be written into topic {self._receipts}: {error.str()}"
            " (if it was denied, grant Write on it)"
        )

    def _fail(self, rows: Sequence[Row]) -> tuple[Row, KafkaError] | None:
        return self._probe(rows).first_failure

    def _probe(self, rows: Sequence[Row]) -> Flight:
        """Ends with the first failure: after it the client sends nothing more, and waiting is for the time-out only.

        What the client throws away for that failure's sake, and what stood in its record batch, may be reported before
        it: a consequence is not the cause.
        """
        probe = Flight(rows)
        self._producer.begin_transaction()
        self._produce(probe, careful=True)
        self._hear(probe, enough=lambda it: it.causes)
        # What the client still tells of it, once it is of no more use, is said to another.
        heard = Flight(rows, failures=probe.causes, invalid=probe.invalid)
        self._producers.renew()  # what was still on its way is not waited for
        return heard

    # Without one

    def _acknowledged(self, flight: Flight) -> Outcome:
        goes_on, left = self._producers.patience.begin(), flight.unacknowledged
        while flight.unacknowledged and goes_on():
            self._producer.flush(0.05)  # not poll: flushing waits for no linger
            if flight.unacknowledged < left:  # slow is not away: sent once more it would not be quicker
                goes_on, left = self._producers.patience.begin(), flight.unacknowledged
        if flight.unacknowledged:
            return Unknown(f"{flight.unacknowledged} messages are not acknowledged")
        if flight.overtook:
            return Unknown("messages before it were sent again behind it, and so is it")
        if not flight.failures and not flight.invalid:
            return Sent()
        self._send_innocent(flight)
        return judge(flight, self._fail_now, transactional=False)

    def _send_innocent(self, flight: Flight) -> None:
        """What was refused for others' sake goes without them: each round names some that are refused themselves.

        The client has gone on without it, so it comes behind what followed it: what followed comes again, too.
        """
        tell_apart(flight, self._fail_now)
        while flight.innocent:
            again = flight.without_causes()
            self._hand_over(again, again.rows, careful=True)
            self._hear(again)
            tell_apart(again, self._fail_now)
            for later in self._flights:
                later.overtook = True
            flight.failures = flight.causes + again.failures
            if again.failures and not again.causes:
                return

    def _fail_now(self, rows: Sequence[Row]) -> tuple[Row, KafkaError] | None:
        """Without a transaction a probe is the messages themselves: what goes through is in the log, as it should be."""
        probe = Flight(rows)
        self._produce(probe, careful=True)
        self._hear(probe)
        return probe.first_failure

    def _hear(self, probe: Flight, enough: Callable[[Flight], object] = lambda _: False) -> None:
        """Wait for the answers to a probe, all of them or enough."""
        goes_on = self._producers.patience.begin()
        while probe.unacknowledged and not enough(probe):
            if not goes_on():
                raise OutcomeUnknown(
                    f"a batch was refused, and Kafka did not say in time for the sake of which of its messages"
                    f" ({probe.unacknowledged} unanswered)"
                )
            self._producer.poll(0.05)
