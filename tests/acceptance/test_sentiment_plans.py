"""The sentiment pipelines of four domains on a real broker: as plans, which run together, they answer the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, make_pipeline

from streamserve.datasets import sentiment
from streamserve.testing.broker_fixture import BrokerForTests
from tests.acceptance.foreign import Foreign, foreign_client
from tests.acceptance.running import STOP_S, project, serving

pytestmark = [
    pytest.mark.beside,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
]

#: Ratings closer to 0 are left out: people did not agree on their sign.
CLEAR_RATING = 0.5
FITTED, ASKED = 300, 12
HEAD = """
[app]
name = "APP"
partitions = 1

[pools.main]
models = [MODELS]
"""
PART = """
[models.NAME]
source = "SOURCE.joblib"
trust_pickle = true
RUNTIME

[routes.NAME]
models = ["NAME"]
input = "text"
probabilities = true
deadline_ms = 20000
"""


def fitted(texts: list[str], labels: Any) -> Any:
    union = FeatureUnion(
        [
            ("words", TfidfVectorizer(ngram_range=(1, 2))),
            ("characters", TfidfVectorizer(analyzer="char", ngram_range=(2, 4))),
        ]
    )
    return make_pipeline(union, LogisticRegression(max_iter=1000)).fit(texts, labels)


def answers(client: Foreign, route: str, texts: list[str], first: int) -> list[Any]:
    tags = list(range(first, first + len(texts)))
    for tag, text in zip(tags, texts, strict=True):
        client.send(text.encode(), tag=tag, headers=[("ss-route", route.encode())])
    seen = client.answers(tags)
    assert {seen[tag].outcome for tag in tags} == {"ok"}
    return [seen[tag].json["outputs"] for tag in tags]


def test_every_domain_answers_alike_with_and_without_a_plan(broker: BrokerForTests, tmp_path: Path) -> None:
    snippets = sentiment()
    domains, clear = np.array(snippets.domains), np.abs(snippets.ratings) > CLEAR_RATING
    names, asked, parts = [], {}, []
    for i, domain in enumerate(dict.fromkeys(snippets.domains)):
        places = np.flatnonzero(clear & (domains == domain))
        texts = [snippets.texts[place] for place in places[:FITTED]]
        joblib.dump(fitted(texts, snippets.ratings[places[:FITTED]] > 0), tmp_path / f"d{i}.joblib")
        asked[i] = [snippets.texts[place] for place in places[-ASKED:]]
        for name, runtime in ((f"plain{i}", ""), (f"plan{i}", 'runtime = "plan"')):
            names.append(name)
            parts.append(PART.replace("NAME", name).replace("SOURCE", f"d{i}").replace("RUNTIME", runtime))
    config = HEAD.replace("MODELS", ", ".join(f'"{name}"' for name in names)) + "".join(parts)
    path = project(tmp_path, config=config, model="", servers=broker.bootstrap_servers)
    with serving(path, "--no-spares", state=tmp_path / "state") as app:
        with foreign_client(app.ready) as client:
            for i, texts in asked.items():
                plain = answers(client, f"plain{i}", texts, 1000 * i)
                assert json.dumps(answers(client, f"plan{i}", texts, 1000 * i + 500)) == json.dumps(plain)
        assert app.stop() <= STOP_S
    assert len(asked) == 4
