"""Digits by their five nearest neighbours, among 40 principal components."""

from __future__ import annotations

from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from workers.trained import trained

components = PCA(n_components=40, svd_solver="randomized", random_state=0)
model = trained("digits_neighbours", make_pipeline(components, KNeighborsClassifier(n_neighbors=5, algorithm="brute")))
