"""How people see a tally: counts by verdict and stage, the worst windows, findings, certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tallymark.cli import output
from tallymark.lifecycle import Verdict
from tallymark.tally.verdicts import MENDABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tallymark.pipeline.reconcileverify import Verification
    from tallymark.tally.findings import KeptFinding
    from tallymark.tally.report import TallyReport

_SHOWN = 20
_WHAT_TO_DO = {
    Verdict.LATE: "see who is behind: `tallymark relay status`, `tallymark inbox status`",
    Verdict.PARKED: "`tallymark failed list`, then retry or discard",
    Verdict.DEAD: "`tallymark failed list --at inbox`, then retry or discard",
    Verdict.LOST_IN_RELAY: "`tallymark tally resend`",
    Verdict.LOST_IN_LOG: "`tallymark tally resend`",
    Verdict.LOST_IN_INBOX: "`tallymark tally resend`",
    Verdict.UNAPPLIED: "find out who removed its effect's mark; apply it by hand",
    Verdict.DOUBLED_IN_LOG: "nothing, where consumers save ids; look for a second writer of the topic",
    Verdict.APPLIED_TWICE: "undo one effect by hand; look for a handler that runs outside the inbox",
    Verdict.REORDERED: "see whether its effect depends on order; look for a second writer of the topic",
    Verdict.ALTERED: "compare both by hand: `tallymark trace`; somebody changed a row",
    Verdict.PHANTOM: "look for who wrote it, or who deleted its row",
}


def report(done: TallyReport) -> list[Any]:
    parts: list[Any] = [
        f"{output.counted(done.messages, 'message')} in {output.counted(done.windows, 'window')}; "
        f"{done.differing} looked into, "
        f"{len(done.still_open)} not closed yet, {done.certified} certified now"
    ]
    parts += done.remarks
    for title, windows in (
        (("closed, not certified", "why"), done.uncertified),
        (("not closed yet", "it waits"), done.still_open),
    ):
        if windows:
            parts.append(
                output.table(title, [(f"{first}–{last}", why) for _, first, last, why in windows[:_SHOWN]])
            )
    parts.append(
        output.table(
            ("verdict", "messages", "which means"),
            [(verdict, n, verdict.sentence) for verdict, n in sorted(done.by_verdict.items()) if n],
        )
    )
    if done.clean:
        return [*parts, "nothing is missing, doubled, reordered or altered"]
    parts.append(
        output.table(
            ("found", "at", "consumer", "count", "what to do"),
            [
                (verdict, stage, consumer or "all", n, _WHAT_TO_DO[verdict])
                for (verdict, stage, consumer), n in sorted(done.by_stage.items())
            ],
        )
    )
    if done.by_window:
        parts.append(
            output.table(
                ("worst windows", "findings"),
                [
                    (f"{at * done.rows}–{(at + 1) * done.rows - 1}", n)
                    for (_, at), n in done.by_window.most_common(5)
                ],
            )
        )
    rows = [
        (
            f.id,
            f.verdict,
            f.stage,
            f.consumer,
            f.topic,
            _key(f.key),
            f.position,
            f.partition,
            f.offset,
            f.evidence,
        )
        for f in done.ordered[:_SHOWN]
    ]
    columns = (
        "id",
        "verdict",
        "at",
        "consumer",
        "topic",
        "key",
        "position",
        "partition",
        "offset",
        "evidence",
    )
    parts.append(output.table(columns, rows))
    if done.found > len(rows):
        parts.append(f"{done.found - len(rows)} more: `tallymark tally list`")
    return parts


def listed(found: Sequence[KeptFinding]) -> Any:
    if not found:
        return "nothing was found"
    return output.table(
        (
            "id",
            "verdict",
            "at",
            "consumer",
            "topic",
            "key",
            "position",
            "first seen",
            "last seen",
            "evidence",
        ),
        [
            (
                each.finding.id,
                each.finding.verdict + (" (over)" if each.over_at else ""),
                each.finding.stage,
                each.finding.consumer,
                each.finding.topic,
                _key(each.finding.key),
                each.finding.position,
                each.first_seen.isoformat(" ", "seconds"),
                each.last_seen.isoformat(" ", "seconds"),
                each.finding.evidence,
            )
            for each in found
        ],
    )


def shown(found: Sequence[KeptFinding]) -> list[Any]:
    parts: list[Any] = []
    for each in found:
        verdict = each.finding.verdict
        parts.append(f"{each.finding.id}  {verdict}: {verdict.sentence}")
        parts.append(
            output.table(
                ("", ""), [(name, value) for name, value in each.as_json().items() if value is not None]
            )
        )
        parts.append(f"what to do: {_WHAT_TO_DO[verdict]}" + (" (mends it)" if verdict in MENDABLE else ""))
    return parts


def runs(found: Sequence[dict[str, Any]]) -> Any:
    if not found:
        return "no tally has run"
    return output.table(
        ("started", "by", "positions", "messages", "findings", "certified"),
        [
            (
                each["started_at"].isoformat(" ", "seconds"),
                each["who"],
                f"{each['from_position']}–{each['to_position']}",
                each["summary"].get("messages"),
                each["summary"].get("findings"),
                each["summary"].get("certified"),
            )
            for each in found
        ],
    )


def verified(found: Verification) -> list[Any]:
    said = (
        f"{output.counted(found.certificates, 'certificate')}, "
        f"{output.counted(found.recomputed, 'window')} recomputed"
    )
    said += f", {found.past} past retention in part" if found.past else ""
    said += f", {found.newer} of which the copies do not reach what was certified" if found.newer else ""
    if found.holds:
        return [f"{said}: all hold"]
    if found.idle and not found.wrong:
        return [f"{said}: nothing was compared; copies made since would tell"]
    rows = [
        (
            each["certificate"],
            f"{each['window'][0]}–{each['window'][1] - 1}" if each["window"] else "",
            each["what"],
        )
        for each in found.wrong
    ]
    return [f"{said}: {len(found.wrong)} do not", output.table(("certificate", "window", "what"), rows)]


def _key(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "backslashreplace")
