"""What a recording shows: accuracy of the routes, of each pipeline and of the best choices in hindsight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from examples.sentiment.record import CEILING, CONTEXTS, PLAIN, ROUTES, Recording, Text

LEAST_OVER_BEST = 8.0
LEAST_OVER_PLAIN = 1.5
BEST, ORACLE = "best in hindsight", "best per domain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise."""

    name: str
    figure: str
    limit: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """All that the report says. Accuracies of routes are shares of the texts that each of them answered; those of
    pipelines, of the texts among these that each of them answered."""

    seconds: float
    texts: int
    judged: int
    """Texts with an answer of each route."""
    members: int
    """Of them, those of which a label met each pipeline's answer: under overload some pipelines are not asked."""
    without_record: int
    """Requests that the broker took and nobody answered."""
    refused: int
    repeated: int
    labels_sent: int
    labels_learnt: int
    accuracy: dict[str, float]
    """Of each route, each pipeline, and of the choices in hindsight."""
    by_domain: dict[str, dict[str, float]]
    best: str
    """The pipeline that would have been the best alone."""
    states: dict[str, int]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def judged_of(run: Recording) -> list[Text]:
    return [text for text in run.texts if all(text.answers.get(route) is not None for route in ROUTES)]


def _with_members(texts: Sequence[Text], run: Recording) -> list[Text]:
    return [text for text in texts if all(model in text.losses for model in run.models)]


def is_right(name: str) -> Callable[[Text], bool]:
    """Whether a route, or a pipeline by its model id, was right about a text."""
    if name in ROUTES:
        return lambda text: text.answers[name] == text.truth
    return lambda text: text.losses[name] == 0.0


def score(run: Recording) -> Score:
    """Judge a finished run."""
    judged = judged_of(run)
    members = _with_members(judged, run)
    domains = sorted({text.domain for text in run.texts})
    texts_of = {**dict.fromkeys(ROUTES, judged), **dict.fromkeys(run.models, members)}
    accuracy = {name: _accuracy(texts, name) for name, texts in texts_of.items()}
    by_domain = {
        domain: {
            name: _accuracy([text for text in texts if text.domain == domain], name) for name, texts in texts_of.items()
        }
        for domain in domains
    }
    best = max(run.models, key=lambda model: accuracy[model])
    shares = {domain: sum(text.domain == domain for text in judged) for domain in domains}
    accuracy[BEST] = accuracy[best]
    accuracy[ORACLE] = (
        sum(shares[domain] * max(by_domain[domain][model] for model in run.models) for domain in domains) / len(judged)
        if judged
        else 0.0
    )
    for domain in domains:
        by_domain[domain][BEST] = by_domain[domain][best]
        by_domain[domain][ORACLE] = max(by_domain[domain][model] for model in run.models)
    answered = sum(len(text.answers) for text in run.texts)
    without = len(run.refs) - answered
    return Score(
        seconds=run.seconds,
        texts=len(run.texts),
        judged=len(judged),
        members=len(members),
        without_record=without,
        refused=run.refused,
        repeated=run.repeated,
        labels_sent=run.labels_sent,
        labels_learnt=run.labels_learnt,
        accuracy=accuracy,
        by_domain=by_domain,
        best=best,
        states=dict(sorted(run.states.items())),
        checks=(
            Check(
                name="requests without a terminal record",
                figure=f"{without} of {len(run.refs):,}",
                limit="0",
                passed=without == 0 and bool(run.refs),
            ),
            Check(
                name="labels learnt from",
                figure=f"{run.labels_learnt:,} of {run.labels_sent:,}",
                limit="all",
                passed=run.labels_learnt == run.labels_sent > 0,
            ),
            _gain(f"contexts over {best}, the best of the four", accuracy, BEST, LEAST_OVER_BEST, members),
            _gain("contexts over the same policy without", accuracy, PLAIN, LEAST_OVER_PLAIN, judged),
        ),
    )


def over_time(judged: Sequence[Text], name: str, window: int) -> tuple[list[float], list[float]]:
    """Seconds, and the accuracy of the last `window` texts, of those that it answered, at each of them."""
    judged = [text for text in judged if name in ROUTES or name in text.losses]
    right = np.cumsum([0.0, *(is_right(name)(text) for text in judged)])
    ends = range(window, len(judged) + 1, max(1, window // 20))
    return [judged[end - 1].sent_s for end in ends], [(right[end] - right[end - window]) / window for end in ends]


def _accuracy(texts: Sequence[Text], name: str) -> float:
    return sum(map(is_right(name), texts)) / len(texts) if texts else 0.0


def _gain(name: str, accuracy: dict[str, float], other: str, least: float, judged: Sequence[Text]) -> Check:
    gain = 100 * (accuracy[CONTEXTS] - accuracy[other])
    return Check(
        name=name,
        figure=f"{gain:+.1f} points ({accuracy[other]:.1%} -> {accuracy[CONTEXTS]:.1%})",
        limit=f"at least {least:+.1f} points",
        passed=bool(judged) and gain >= least,
    )


#: Rows of the report, in its order: what is printed of each route.
SHOWN = ((CONTEXTS, "contexts"), (PLAIN, "same policy without contexts"), (CEILING, "one trained on all (ceiling)"))
