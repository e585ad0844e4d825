"""A stream of real images on which the best of five models fails for a while.

Five models of different kinds, without torch, trained on parts of 2,000 of the 5,000 MNIST images; 20,000 queries drawn
with replacement from the other 3,000. For the queries 5,000 to 9,999 the best model is given its images transposed and
inverted, then it is mended. Each model's probabilities for each image are computed once and kept in the cache.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from benchmarks.patch_features import PatchFeatures
from streamserve.datasets import MNIST_SHA256, cache_folder, mnist5k

QUERIES, FAILS_AT, MENDED_AT = 20_000, 5_000, 10_000
MODELS = ("patches@1", "kernel@1", "linear@1", "forest@1", "tree@1")
TRAINED = 2_000
_CLASSES = 10
_RIGHT, _RIGHT_BROKEN = (0.92, 0.88, 0.84, 0.78, 0.65), 0.30

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """What each model says of each image that none was trained with."""

    labels: I64
    """`[images]`"""
    sound: F64
    """`[models, images, classes]`: probabilities."""
    broken: F64
    """`[images, classes]`: of the best model, given spoilt images."""

    @property
    def accuracies(self) -> list[float]:
        """Of each model, then of the best one while it is broken."""
        said = [*self.sound.argmax(axis=2), self.broken.argmax(axis=1)]
        return [float((one == self.labels).mean()) for one in said]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stream:
    """One run of queries."""

    labels: I64
    """`[queries]`"""
    probabilities: F64
    """`[queries, models, classes]`"""

    @property
    def losses(self) -> F64:
        """`[queries, models]`: 1 where the model is wrong."""
        wrong: F64 = (self.probabilities.argmax(axis=2) != self.labels[:, None]).astype(float)
        return wrong

    @property
    def oracle(self) -> F64:
        """`[queries]`: losses of the best model, and of the second while that one is broken."""
        losses = self.losses
        best = losses[:, 0].copy()
        best[FAILS_AT:MENDED_AT] = losses[FAILS_AT:MENDED_AT, 1]
        return best


def answers() -> Answers:
    """From the cache, or from models trained now (some 20 s)."""
    file = _file()
    if not file.is_file():
        found = _train()
        part = file.with_name(f"{file.name}.part.npz")
        np.savez_compressed(part, labels=found.labels, sound=found.sound, broken=found.broken)
        part.replace(file)
    with np.load(file) as kept:
        return Answers(labels=kept["labels"], sound=kept["sound"], broken=kept["broken"])


def stream(found: Answers, seed: int, queries: int = QUERIES) -> Stream:
    """Queries of this seed."""
    drawn = np.random.default_rng(seed).integers(0, len(found.labels), queries)
    probabilities = found.sound[:, drawn].transpose(1, 0, 2).copy()
    spoilt = slice(FAILS_AT, MENDED_AT)
    probabilities[spoilt, 0] = found.broken[drawn[spoilt]]
    return Stream(labels=found.labels[drawn], probabilities=probabilities)


def bernoulli(seed: int) -> tuple[F64, F64]:
    """Losses drawn and losses expected, `[queries, models]` each, of five models whose answers know nothing of each
    other; the best one fails in the same queries."""
    expected = np.tile(1.0 - np.array(_RIGHT), (QUERIES, 1))
    expected[FAILS_AT:MENDED_AT, 0] = 1.0 - _RIGHT_BROKEN
    return (np.random.default_rng(seed).random(expected.shape) < expected).astype(float), expected


def _models() -> list[tuple[Any, slice]]:
    """Estimators and the rows of the training images that each sees."""
    kernel = Nystroem(gamma=0.02, n_components=400, random_state=0)
    return [
        (PatchFeatures(), slice(0, 500)),
        (make_pipeline(PCA(50, random_state=0), kernel, LogisticRegression(C=100, max_iter=300)), slice(600, 2_000)),
        (LogisticRegression(max_iter=200), slice(1_000, 1_800)),
        (RandomForestClassifier(100, random_state=0), slice(1_400, 1_700)),
        (DecisionTreeClassifier(random_state=0, min_samples_leaf=3), slice(0, 2_000)),
    ]


def fitted(places: tuple[int, int]) -> tuple[Any, Any, F64]:
    """Two of the models, trained as those of the stream, and images that none was trained with."""
    images, labels = mnist5k()
    pixels = images / 255.0
    order = np.random.default_rng(0).permutation(len(labels))
    taught, asked = order[:TRAINED], order[TRAINED:]
    found = _models()
    fits = [(found[place][0], taught[found[place][1]]) for place in places]
    one, other = (model.fit(pixels[rows], labels[rows]) for model, rows in fits)
    return one, other, pixels[asked]


def _file() -> Path:
    key = hashlib.sha256("\n".join([repr(_models()), sklearn.__version__, MNIST_SHA256]).encode()).hexdigest()[:12]
    return cache_folder("models") / f"failure-stream-{key}.npz"


def _train() -> Answers:
    images, labels = mnist5k()
    pixels = images / 255.0
    order = np.random.default_rng(0).permutation(len(labels))
    taught, asked = order[:TRAINED], order[TRAINED:]
    spoilt = 1.0 - pixels[asked].reshape(-1, 28, 28).transpose(0, 2, 1).reshape(len(asked), -1)
    sound, broken = [], np.empty((0, _CLASSES))
    for place, (model, rows) in enumerate(_models()):
        model.fit(pixels[taught[rows]], labels[taught[rows]])
        sound.append(model.predict_proba(pixels[asked]))
        if place == 0:
            broken = model.predict_proba(spoilt)
    return Answers(labels=labels[asked], sound=np.stack(sound), broken=broken)
