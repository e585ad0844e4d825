"""What `streamserve replay` says: as plain values, as a table, and a request as a line of the disagreements' file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamserve.client.replay import Replay
from streamserve.core.evaluation.agreement import SERVED, Replayed, Versus

Report = dict[str, Any]
_HEAD = ("compared with", "requests", "agree", "labelled", "its accuracy", "candidate's", "better", "worse")
_MOST_REFUSALS = 5


def report_of(result: Replay, model: str, route: str, file: Path | None) -> Report:
    """All of it. Shares are from 0 to 1; None where there is nothing to take them of."""
    found, times = result.comparison, result.times
    order = sorted(found.versus, key=lambda name: (name != SERVED, name))
    return {
        "model": model,
        "route": route,
        "complete": result.is_whole,
        "broken_off": result.is_broken_off,
        "failure": None if result.failure is None else str(result.failure),
        "gaps": result.gaps,
        "partitions": [
            {"partition": one.partition, "from": one.start, "to": one.end, "reached": one.reached}
            for one in result.reach
        ],
        "requests": found.requests,
        "answered": found.answered,
        "refused": found.requests - found.answered,
        "refusals": [
            {"words": words, "requests": one.requests, "first": one.first} for words, one in found.refusals.items()
        ],
        "passed_over": result.passed_over,
        "without_prediction": found.without_prediction,
        "without_served_answer": found.unanswered,
        "unreadable_predictions": result.unreadable_predictions,
        "unreadable_outcomes": result.unreadable_outcomes,
        "labelled": found.labelled,
        "accuracy": found.accuracy,
        "unusable_labels": found.unusable_labels,
        "tolerance": found.tolerance if found.combine == "mean" else None,
        "versus": [{"name": name, **_versus(found.versus[name])} for name in order],
        "disagreements": found.disagreements,
        "disagreements_file": None if file is None else str(file),
        "calls": {
            "batches": times.batch.weight,
            "rows": times.rows,
            "batch_p50_ms": times.batch.quantile(0.5),
            "batch_p99_ms": times.batch.quantile(0.99),
            "row_p50_ms": times.row.quantile(0.5),
            "row_p99_ms": times.row.quantile(0.99),
            "rows_per_s": times.rows_per_s,
        },
        "seconds": result.seconds,
        "requests_per_s": found.requests / result.seconds if result.seconds else None,
    }


def _versus(one: Versus) -> Report:
    return {
        "requests": one.requests,
        "agree": one.agree,
        "agreement": one.agreement,
        "rows": one.rows,
        "rows_agree": one.rows_agree,
        "labelled": one.labelled,
        "accuracy": one.accuracy,
        "candidate_accuracy": one.candidate_accuracy,
        "better": one.better,
        "worse": one.worse,
    }


def in_words(report: Report) -> str:
    """The same for a person."""
    lines = [_first(report)]
    if report["versus"]:
        lines += ["", *_table(report)]
    lines += ["", *_counts(report)]
    calls = report["calls"]
    if calls["batches"]:
        lines.append(
            f"model calls: {calls['batches']:,} of {calls['rows']:,} rows; a batch {calls['batch_p50_ms']:.3g} ms p50, "
            f"{calls['batch_p99_ms']:.3g} ms p99; a row {calls['row_p50_ms']:.3g} ms p50, {calls['row_p99_ms']:.3g} ms "
            f"p99; {calls['rows_per_s']:,.0f} rows/s"
        )
    lines += [f"NOT WHOLE: {words}" for words in _shortfalls(report)]
    return "\n".join(lines)


def _first(report: Report) -> str:
    words = f"{report['model']} on {report['requests']:,} requests of route {report['route']}"
    if report["requests_per_s"]:
        words += f", {report['seconds']:.1f} s, {report['requests_per_s']:,.0f} requests/s"
    return words


def _table(report: Report) -> list[str]:
    rows = [_HEAD]
    for one in report["versus"]:
        rows.append(
            (
                one["name"],
                f"{one['requests']:,}",
                _percent(one["agreement"]),
                f"{one['labelled']:,}",
                _percent(one["accuracy"]),
                _percent(one["candidate_accuracy"]),
                f"{one['better']:,}",
                f"{one['worse']:,}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(widths[i]) for i, cell in enumerate(row) if i)])
        for row in rows
    ]


def _counts(report: Report) -> list[str]:
    lines = []
    if report["labelled"]:
        lines.append(f"accuracy on all {report['labelled']:,} labelled requests: {_percent(report['accuracy'])}")
    else:
        lines.append("no request has a usable label (the learner writes them to the outcomes topic)")
    where = report["disagreements_file"]
    lines.append(
        f"answered otherwise than served: {report['disagreements']:,}"
        + (f", listed in {where}" if where else "; --disagreements FILE lists them")
    )
    if report["refused"]:
        lines.append(f"refused by the candidate: {report['refused']:,}")
        shown = sorted(report["refusals"], key=lambda one: -one["requests"])
        lines += [f"  {one['requests']:,}, first {one['first']}: {one['words']}" for one in shown[:_MOST_REFUSALS]]
        if len(shown) > _MOST_REFUSALS:
            lines.append(f"  and {len(shown) - _MOST_REFUSALS} other reasons")
    for key, words in (
        ("without_served_answer", "served without an answer"),
        ("passed_over", "requests passed over"),
        ("unusable_labels", "labels that cannot be used"),
    ):
        if report[key]:
            lines.append(f"{words}: {', '.join(f'{count:,} {name}' for name, count in sorted(report[key].items()))}")
    for key, words in (
        ("without_prediction", "requests whose prediction is not in the topic"),
        ("unreadable_predictions", "predictions that cannot be read"),
        ("unreadable_outcomes", "outcomes that cannot be read"),
    ):
        if report[key]:
            lines.append(f"{words}: {report[key]:,}")
    return lines


def _shortfalls(report: Report) -> list[str]:
    found = list(report["gaps"])
    if report["broken_off"] or report["failure"]:
        left = [
            f"partition {one['partition']} from offset {one['reached']} to {one['to']}"
            for one in report["partitions"]
            if one["reached"] < one["to"]
        ]
        why = "broken off" if report["broken_off"] else "ended by a failure"
        found.append(f"{why}; not replayed: {', '.join(left) or 'nothing'}")
    return found


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def listed_line(one: Replayed) -> str:
    """One request as JSON: `label` only where it is known, `refused` only where the candidate did."""
    line: Report = {
        "ref": one.ref,
        "id": one.id,
        "served": None if one.decision is None else one.decision.label,
        "candidate": one.answer,
    }
    if one.has_label:
        line["label"] = one.label
    if one.answer is None:
        line["refused"] = one.refusal
    return json.dumps(line)
