"""Digits by logistic regression: the fastest, and the weakest."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from workers.trained import trained

model = trained("digits_linear", make_pipeline(MinMaxScaler(), LogisticRegression(C=1.0, max_iter=100)))
