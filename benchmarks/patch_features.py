"""A small convolutional model without a deep-learning framework: k-means filters, pooling, logistic regression.

Source: Coates, Lee, Ng, An Analysis of Single-Layer Networks in Unsupervised Feature Learning (2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression

F64 = NDArray[np.float64]
_SIDE, _PATCH, _STEP, _POOLS = 28, 7, 2, 3
_SAMPLED, _AT_ONCE = 20_000, 200
_FLAT = 0.1


@dataclass(slots=True)
class PatchFeatures:
    """`fit` and `predict_proba` as scikit-learn's classifiers have them, for images of 28 x 28 pixels of 0 to 1."""

    filters: int = 100
    _kernels: F64 | None = None
    _scale: tuple[F64, F64] | None = None
    _head: LogisticRegression | None = None

    def fit(self, images: F64, labels: NDArray[np.int64]) -> PatchFeatures:
        found = _patches(images).reshape(-1, _PATCH * _PATCH)
        taken = np.random.default_rng(0).choice(len(found), min(len(found), _SAMPLED), replace=False)
        means = MiniBatchKMeans(self.filters, random_state=0, n_init=1, batch_size=2_048).fit(found[taken])
        centres: F64 = means.cluster_centers_
        self._kernels = centres / np.linalg.norm(centres, axis=1, keepdims=True)
        features = self._features(images)
        self._scale = features.mean(axis=0), features.std(axis=0) + _FLAT
        self._head = LogisticRegression(C=0.05, max_iter=300).fit(self._scaled(features), labels)
        return self

    def predict_proba(self, images: F64) -> F64:
        if self._head is None:
            raise ValueError("fit comes first")
        found: F64 = self._head.predict_proba(self._scaled(self._features(images)))
        return found

    def _scaled(self, features: F64) -> F64:
        if self._scale is None:
            raise ValueError("fit comes first")
        mean, deviation = self._scale
        return (features - mean) / deviation

    def _features(self, images: F64) -> F64:
        """`[n, 9 * filters]`: the strongest answer of each filter in each of 3 x 3 fields."""
        if self._kernels is None:
            raise ValueError("fit comes first")
        found = []
        for first in range(0, len(images), _AT_ONCE):
            patches = _patches(images[first : first + _AT_ONCE])
            side = int(np.sqrt(patches.shape[1]))
            answers = np.maximum(patches @ self._kernels.T, 0.0).reshape(len(patches), side, side, -1)
            fields = np.array_split(np.arange(side), _POOLS)
            pooled = [answers[:, rows][:, :, columns].max(axis=(1, 2)) for rows in fields for columns in fields]
            found.append(np.concatenate(pooled, axis=1))
        return np.concatenate(found)


def _patches(images: F64) -> F64:
    """`[n, places, 49]`: each less its mean, scaled by its deviation."""
    views = np.lib.stride_tricks.sliding_window_view(images.reshape(-1, _SIDE, _SIDE), (_PATCH, _PATCH), axis=(1, 2))[
        :, ::_STEP, ::_STEP
    ]
    flat = views.reshape(len(views), -1, _PATCH * _PATCH)
    centred = flat - flat.mean(axis=-1, keepdims=True)
    scaled: F64 = centred / (np.sqrt((centred**2).mean(axis=-1, keepdims=True)) + _FLAT)
    return scaled
