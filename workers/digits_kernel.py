"""Digits by an approximated kernel machine: 400 landmarks of a radial basis, then logistic regression."""

from __future__ import annotations

from sklearn.decomposition import PCA
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from workers.trained import trained

components = PCA(n_components=50, svd_solver="randomized", random_state=0)
landmarks = Nystroem(gamma=2e-7, n_components=400, random_state=0)
model = trained("digits_kernel", make_pipeline(components, landmarks, LogisticRegression(C=100.0, max_iter=200)))
