"""Everything that grows, declared once: what bounds it, what tells its fill, what happens when it is full.

`bounds.md` is made from it. `tests/test_bounds.py` checks it against the settings, what the stages tell, and the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamserve.kafka.learnt_metrics import MOST_CONTEXTS, MOST_IN_A_MEAN
from streamserve.settings import schema

#: Gauge of how full each thing is, by the label `bound`.
METRIC = "streamserve_bound_fill_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One thing that grows."""

    what: str
    setting: str = ""
    """Its key in the config, as `section.key`; empty: `limit` says what bounds it."""
    limit: str = ""
    """What bounds it, where that is not the setting as it stands."""
    fill: str = ""
    """Label of `METRIC`; empty: `metric`."""
    metric: str = ""
    full: str
    """What happens then."""
    test: str


SERVING = (
    Bound(
        what="records fetched that the role has not looked at",
        setting="bounds.fetched_records",
        fill="fetched_records",
        full="all fetching waits until half is left; the rest stays in the log",
        test="kafka/test_loop.py::test_fetching_stops_above_the_bound_and_goes_on_below",
    ),
    Bound(
        what="their values, keys and headers",
        setting="bounds.fetched_bytes",
        fill="fetched_bytes",
        full="the same",
        test="kafka/test_loop.py::test_fetching_stops_at_the_bound_of_bytes_too",
    ),
    Bound(
        what="what the Kafka client has fetched beyond these",
        limit="one answer of each broker, 50 MiB at most, 1 MiB of a partition",
        full="the client asks for no more of what it still holds",
        test="kafka/test_loop.py::test_fetching_stops_at_the_bound_of_bytes_too",
    ),
    Bound(
        what="records sent and not acknowledged (of blocks of answers: their rows), and dead letters to be sent again",
        setting="bounds.unacknowledged_records",
        fill="unacknowledged_records",
        full="nothing is fetched until some are acknowledged; what is open goes on to its deadline",
        test="kafka/test_loop.py::test_nothing_is_fetched_while_too_much_is_unacknowledged",
    ),
    Bound(
        what="requests queued at one model",
        setting="bounds.queue_requests",
        limit="reading stops; and twice `fetched_records` more, which may be on their way",
        fill="queue_requests",
        full="no more requests are read while every model has so many (the gauge is then far from 1). Where others "
        "have room, those with the latest "
        'deadlines are shed at this model, `streamserve_shed_requests_total{why="full"}`',
        test="core/test_fused.py::test_a_model_that_hangs_holds_up_nobody_and_no_more_than_its_bound",
    ),
    Bound(
        what="their bodies, keys and headers",
        setting="bounds.queue_bytes",
        limit="reading stops; and twice `fetched_bytes` more",
        fill="queue_bytes",
        full="the same",
        test="core/test_fused.py::test_a_queue_is_bounded_by_the_bytes_of_its_bodies_too",
    ),
    Bound(
        what="calls of a model",
        limit="one, of at most `max_batch` rows",
        metric="`streamserve_batch_size`",
        full="requests wait in the queue",
        test="core/test_fused.py::test_requests_share_batches_while_a_call_is_running",
    ),
    Bound(
        what="requests that wait for the call of an equal input",
        limit="`[bounds] queue_requests`, and those of one batch",
        fill="coalesced_requests",
        full="equal inputs stay in the queue, and may be evaluated again",
        test="core/test_cache.py::test_no_more_follow_a_call_than_the_bound_allows_the_others_stay_queued",
    ),
    Bound(
        what="results of inputs seen before, shared out among a pool's models",
        setting="pools.NAME.cache_bytes",
        fill="cache_bytes",
        full="the least recently used goes; full is how it should be",
        test="core/test_cache.py::test_the_budget_is_kept_and_what_is_found_is_what_was_put",
    ),
    Bound(
        what="features of texts that several plans of a process share",
        setting="pools.NAME.plan_cache_bytes",
        metric="streamserve_plan_cache_bytes",
        full="the least recently used row goes, unless it was asked for again: then the new one is not kept",
        test="plan/test_materialised.py::test_a_row_that_is_asked_for_outlives_those_that_are_not",
    ),
    Bound(
        what="requests of an aggregator that have no acknowledged record",
        setting="bounds.open_requests",
        fill="open_requests",
        full="no more requests are read until some have their answers or their deadlines; but they are while answers "
        "wait for their requests, so that neither waits for the other for ever",
        test="core/stages/test_aggregator.py::test_the_laws_hold",
    ),
    Bound(
        what="bodies, keys and headers of requests that a worker or an aggregator holds",
        setting="bounds.open_bytes",
        fill="open_bytes",
        full="those whose records are acknowledged are let go at once; no more requests are read until others are, too",
        test="core/test_aggregator.py::test_no_more_requests_are_read_while_those_held_take_too_many_bytes",
    ),
    Bound(
        what="the same where a worker also answers (fused)",
        limit="follows from the queues and from what is not acknowledged",
        metric="`streamserve_open_requests`",
        full="as of these",
        test="core/stages/test_fused.py::test_the_laws_hold",
    ),
    Bound(
        what="what is left of requests that are answered, behind one that still waits",
        limit="numbers only, some 500 bytes of each; for `[app] max_deadline_ms` at most",
        metric="`streamserve_open_requests`",
        full="the oldest deadline comes, and all of it goes",
        test="core/test_fused.py::test_bodies_are_let_go_behind_a_request_that_waits_long",
    ),
    Bound(
        what="answers that came before their requests",
        setting="bounds.early_answers",
        fill="early_answers",
        full="no more answers are read until the requests have caught up to half",
        test="core/test_aggregator.py::test_the_answers_topic_waits_while_too_many_answers_are_early",
    ),
    Bound(
        what="contexts of one route that have a learnt state",
        setting="routes.NAME.contexts.most",
        full="feedback of a further context teaches only the levels above it, "
        '`streamserve_events_total{what="outcomes",label="too_many_contexts"}`; these decide for it too. As many '
        "more as there are partitions, where learners begin them at the same moment",
        test="core/stages/test_contexts.py::test_a_context_too_many_gets_no_state_and_is_counted",
    ),
    Bound(
        what="keyed contexts of one route that have a learnt state, in one partition",
        setting="routes.NAME.contexts.most_keyed",
        fill="keyed_contexts",
        full="as of other contexts; room comes when states are forgotten (`forget_after_ms`)",
        test="core/stages/test_keyed.py::test_a_key_too_many_gets_no_state_and_is_counted",
    ),
    Bound(
        what="learnt states of one route, or of one of its contexts",
        setting="bounds.learnt_states",
        fill="learnt_states",
        full="the oldest are forgotten; requests from before are decided by the oldest that is kept, and marked "
        "`stale`. Full is how it should be after so many",
        test="core/test_epochs.py::"
        "test_only_the_newest_states_are_kept_and_older_requests_are_decided_by_the_oldest_of_them",
    ),
    Bound(
        what="milliseconds before its deadline at which an answer is decided",
        limit="half of the shortest deadline of a route",
        fill="guard_ms",
        full="records that take still longer into the log come late. It begins at `[app] guard_ms` and follows how "
        "long those of late took: where it stays high, the broker is slow or the process has more to do than it can",
        test="core/test_headroom.py::test_it_stays_between_the_guard_and_half_of_the_budget",
    ),
    Bound(
        what="ends of the states' topic asked for and not reached",
        limit="100",
        full="no more is asked for until one is reached; choices are marked `stale` meanwhile",
        test="kafka/test_states.py::test_a_reader_that_is_behind_asks_for_no_more_ends_than_the_bound",
    ),
    Bound(
        what="rows of insights of one partition that are not closed",
        setting="insights.most_rows",
        fill="insight_rows",
        full="what needs a further row is left out of it, `too_many_rows` on the page of insights",
        test="insights/test_slices.py::test_what_needs_more_rows_than_there_may_be_is_left_out",
    ),
    Bound(
        what="switches of one model (`models disable|enable`) that are remembered",
        limit="100",
        full="the oldest are forgotten: requests from before them are decided as if there had been none",
        test="core/test_switches.py::test_of_a_switch_that_is_thrown_all_the_time_the_newest_are_remembered",
    ),
    Bound(
        what="distinct headers that are remembered as parsed",
        limit="4,096, of at most 1 KiB each",
        full="all are forgotten, and parsed again as they come; larger ones are parsed each time",
        test="core/test_admission.py::test_more_distinct_headers_than_the_memo_holds",
    ),
    Bound(
        what="memory and threads of a model with a process of its own",
        setting="models.NAME.memory_bytes",
        limit="and `most_threads`",
        metric="`streamserve_model_process_resident_bytes`, `streamserve_model_process_threads`",
        full="it is ended and started again; meanwhile its answers are missing",
        test="runtimes/test_isolated.py::test_a_process_that_ends_is_told_of_and_is_back",
    ),
    Bound(
        what="label values of metrics",
        limit="routes, models, topics and partitions of the config, closed lists; of what users send, contexts alone",
        full="-",
        test="kafka/test_metrics.py::test_terminal_records_are_counted_by_outcome_and_reason",
    ),
    Bound(
        what="contexts of one route with a label of their own, of what was learnt",
        limit=f"{MOST_CONTEXTS} names, the first heard",
        full=(
            f"the mean of further ones has the label `/`, that of keyed ones `//`: each over the {MOST_IN_A_MEAN} that "
            "were heard last"
        ),
        test="kafka/test_learnt_metrics.py::test_contexts_make_no_more_series_than_the_bound",
    ),
    Bound(
        what="figures of its own that one model reports",
        limit="64 names",
        metric='`streamserve_events_total{what="model_metric"}`',
        full="further names are counted there, and not kept",
        test="kafka/test_metrics.py::test_a_model_that_names_its_figures_anew_each_time_makes_no_more_series_than_the_bound",
    ),
)
LEARNING = (
    Bound(
        what="predictions that wait for feedback, three quarters of it",
        setting="learn.window_bytes",
        fill="window_bytes",
        full="the oldest are forgotten, their feedback is `late`",
        test="core/stages/test_join.py::test_the_window_is_bounded_by_bytes",
    ),
    Bound(
        what="answers for members that a prediction lacks, a quarter of it",
        setting="learn.window_bytes",
        limit='at most 128 MiB with `window_store = "rocksdb"`',
        fill="window_answers_bytes",
        full="the oldest are forgotten, those members are not taught",
        test="core/stages/test_join.py::test_the_join_keeps_the_laws",
    ),
    Bound(
        what="feedback of one partition that waits for its prediction",
        setting="bounds.waiting_feedback",
        fill="waiting_feedback",
        full="no more feedback of this partition is read until half is left; nothing waits longer than 10 s",
        test="core/stages/test_join.py::test_fetching_pauses_while_too_much_waits",
    ),
    Bound(
        what="feedback whose outcome, dead letter or forwarding is not in the log",
        setting="bounds.unacknowledged_records",
        fill="unacknowledged_feedback",
        full="no more feedback is read until some is",
        test="core/stages/test_join.py::test_no_more_is_read_while_too_much_is_not_in_the_log",
    ),
    Bound(
        what="forwarded feedback of one partition that is remembered",
        setting="bounds.remembered_feedback",
        limit="and `[learn] join_window_ms`",
        fill="remembered_feedback",
        full="the oldest is forgotten: a copy that comes still later is joined again",
        test="core/stages/test_join.py::test_of_forwarded_records_the_oldest_are_forgotten_above_the_bound",
    ),
    Bound(
        what="outcomes read whose state is not in the log",
        setting="bounds.unacknowledged_records",
        fill="unacknowledged_outcomes",
        full="no more outcomes are read until it is",
        test="core/stages/test_update.py::test_no_more_is_read_while_too_much_is_not_in_the_log",
    ),
    Bound(
        what="feedback of one partition of outcomes that is remembered as learnt from",
        setting="bounds.remembered_feedback",
        limit="and 60 s",
        fill="remembered_outcomes",
        full="the oldest is forgotten: a copy that comes still later teaches again",
        test="core/stages/test_update.py::"
        "test_of_the_feedback_that_was_learnt_from_the_oldest_is_forgotten_above_the_bound",
    ),
    Bound(
        what="outcomes that `learn-head` has read and not learnt from",
        limit="11,000",
        full="no more are read but of the partition that the others wait for",
        test="core/test_head_order.py::test_above_the_bound_only_what_the_rest_waits_for_is_read",
    ),
    Bound(
        what="feedback of one partition of outcomes that `learn-head` knows again",
        limit="that of 2,000 outcomes",
        full="a copy that comes still later teaches again",
        test="core/test_head_order.py::test_the_order_is_one_whatever_the_reads_and_restarts",
    ),
    Bound(
        what="published heads of one model in the object store",
        limit="4",
        full="the oldest goes, with its arrays; what has mapped them keeps them",
        test="plan/test_store.py::test_what_is_dropped_goes_at_once_with_what_it_alone_has",
    ),
)
CLIENT = (
    Bound(
        what="requests that wait for their answers; feedback that waits for its acknowledgement",
        limit="`Client(max_outstanding=100_000)`, each",
        full="`TooManyOutstanding`; nothing is sent",
        test="client/test_client.py::test_no_more_than_the_bound_are_outstanding_and_the_rest_is_not_sent",
    ),
    Bound(
        what="predictions that an iteration has not taken",
        limit="`predictions(max_waiting=10_000)`",
        full="the oldest are lost to it, and it says how many",
        test="client/test_client.py::test_a_stream_that_is_not_taken_says_what_it_lost",
    ),
    Bound(
        what="refs of one partition that are remembered, and records that came before their requests' acknowledgement",
        limit="16,384 each",
        full="the oldest are forgotten",
        test="client/test_matching.py::test_memory_is_bounded",
    ),
)
SUPERVISOR = (
    Bound(
        what="the log file of one process",
        limit="4 MiB, and the one before it",
        full="it becomes `NAME.1`, and a new one begins",
        test="supervisor/test_logfile.py::test_above_the_bound_a_new_file_begins_and_one_old_one_is_kept",
    ),
    Bound(
        what="lines that nobody reads",
        limit="2,000",
        full="more are dropped; how many is said before the next one",
        test="supervisor/test_lines.py::test_a_full_pipe_drops_lines_counts_them_and_never_waits",
    ),
)
GROUPS = {
    "Worker and aggregator": SERVING,
    "Learner": LEARNING,
    "Client": CLIENT,
    "Supervisor": SUPERVISOR,
}
BOUNDS = tuple(bound for group in GROUPS.values() for bound in group)
_HEAD = """\
# Bounds

<!-- Generated by `python -m streamserve.cli.reference`; do not edit. -->

Everything that grows has a bound, and a stated behaviour when it is full. All are of one process. Where the metric
column names a label, it is that of the gauge `streamserve_bound_fill_ratio{bound="..."}`: 0 is empty, 1 is full; of
several things with the same bound (queues, partitions, routes) it tells the fullest. It is set when somebody looks. One
rule watches them all: `max by (bound) (streamserve_bound_fill_ratio) > 0.8`, without those for which being full is
normal.
"""


def default_of(setting: str) -> object:
    """The default of a key of the config, given as `section.key`. KeyError where there is none."""
    *section, key = setting.split(".")
    node = schema.node_at(tuple(section)) or {}
    return schema.resolve(node["properties"][key]).get("default")


def bounds_page() -> str:
    """`bounds.md`."""
    parts = [_HEAD]
    for title, bounds in GROUPS.items():
        lines = [
            f"## {title}",
            "",
            "| what | bound | default | metric | when full | test |",
            "|---|---|---|---|---|---|",
        ]
        parts.append("\n".join([*lines, *_rows(bounds)]) + "\n")
    return "\n".join(parts)


def _rows(bounds: tuple[Bound, ...]) -> Iterator[str]:
    for bound in bounds:
        section, _, key = bound.setting.rpartition(".")
        named = [f"`[{section}] {key}`"] if bound.setting else []
        limit = ": ".join([*named, *([bound.limit] if bound.limit else [])])
        default = f"{default_of(bound.setting):,}" if bound.setting else "–"
        metric = f"`{bound.fill}`" if bound.fill else bound.metric or "–"
        file = bound.test.partition("::")[0]
        yield f"| {bound.what} | {limit} | {default} | {metric} | {bound.full} | `tests/{file}` |"
