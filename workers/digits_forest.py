"""Digits by a small forest of extremely randomised trees."""

from __future__ import annotations

from sklearn.ensemble import ExtraTreesClassifier

from workers.trained import trained

forest = ExtraTreesClassifier(n_estimators=40, max_features=20, min_samples_leaf=2, random_state=0)
model = trained("digits_forest", forest, trusted=("sklearn.tree._tree.Tree",))
