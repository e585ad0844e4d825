"""Tables and fitted models over columns that the tests of plans share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, RidgeClassifier, SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier

ROWS, COLUMNS = 120, 5
_draw = np.random.default_rng(3)
NUMBERS = _draw.normal(size=(ROWS, COLUMNS)) * [1, 10, 100, 1e-3, 1] + [0, 5, 0, 0, 1]
HOLED = np.where(_draw.random(NUMBERS.shape) < 0.1, np.nan, NUMBERS)
EMPTY = np.where(np.arange(COLUMNS) == 3, np.nan, HOLED)
TWO = (NUMBERS[:, 0] + NUMBERS[:, 1] > 5).astype(int)
THREE = np.array(["a", "b", "c"])[_draw.integers(3, size=ROWS)]
VALUES = NUMBERS[:, 2] + _draw.normal(size=ROWS)
FRAME = pd.DataFrame(
    {
        "n": NUMBERS[:, 0],
        "m": HOLED[:, 1],
        "c": _draw.choice(["red", "green", "blue"], ROWS, p=[0.6, 0.3, 0.1]),
        "d": _draw.choice([1, 2, 3], ROWS),
        "o": _draw.choice(np.array(["x", None, "y", np.nan], dtype=object), ROWS),
        "t": [f"the cat {i} sat" if i % 2 else "großer Hund" for i in range(ROWS)],
    }
)

SCALERS: dict[str, Any] = {
    "standard": StandardScaler(),
    "standard_no_mean": StandardScaler(with_mean=False),
    "min_max": MinMaxScaler(clip=True),
    "max_abs": MaxAbsScaler(clip=True),
    "robust": RobustScaler(),
    "l1": Normalizer("l1"),
    "l2": Normalizer("l2"),
    "max": Normalizer("max"),
    "binarizer": Binarizer(threshold=0.3),
    "two": make_pipeline(StandardScaler(), MinMaxScaler(feature_range=(-1, 2))),
}
IMPUTERS: dict[str, Any] = {
    "mean": SimpleImputer(),
    "median": SimpleImputer(strategy="median"),
    "constant": SimpleImputer(strategy="constant", fill_value=-7.0),
    "keeps_empty": SimpleImputer(keep_empty_features=True),
}
TREES: dict[str, tuple[Any, Any]] = {
    "tree": (DecisionTreeClassifier(random_state=0), THREE),
    "extra_tree": (ExtraTreeClassifier(random_state=0), TWO),
    "tree_values": (DecisionTreeRegressor(random_state=0), VALUES),
    "forest": (RandomForestClassifier(9, random_state=0, n_jobs=2), THREE),
    "forest_best_first": (RandomForestClassifier(5, max_leaf_nodes=9, random_state=0), TWO),
    "extra": (ExtraTreesClassifier(9, random_state=0), THREE),
    "forest_values": (RandomForestRegressor(9, random_state=0), VALUES),
    "extra_values": (ExtraTreesRegressor(5, random_state=0), VALUES),
}
BOOSTED: dict[str, tuple[Any, Any]] = {
    "two": (GradientBoostingClassifier(n_estimators=6, random_state=0), TWO),
    "three": (GradientBoostingClassifier(n_estimators=4, random_state=0), THREE),
    "exponential": (GradientBoostingClassifier(n_estimators=6, loss="exponential", random_state=0), TWO),
    "zero": (GradientBoostingClassifier(n_estimators=4, init="zero", random_state=0), THREE),
    "values": (GradientBoostingRegressor(n_estimators=6, random_state=0), VALUES),
    "huber": (GradientBoostingRegressor(n_estimators=6, loss="huber", init="zero", random_state=0), VALUES),
}
LINEAR: dict[str, tuple[Any, Any]] = {
    "logistic": (LogisticRegression(), TWO),
    "softmax": (LogisticRegression(), THREE),
    "sgd": (SGDClassifier(loss="modified_huber", random_state=0), THREE),
    "ridge_classifier": (RidgeClassifier(), TWO),
    "ridge": (Ridge(), VALUES),
    "regression": (LinearRegression(), np.stack([VALUES, -VALUES], axis=1)),
}


def scaled(scaler: str, model: Any, labels: Any) -> Pipeline:
    return make_pipeline(clone(SCALERS[scaler]), clone(model)).fit(NUMBERS, labels)


def encoded(**options: Any) -> Pipeline:
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["n", "m"]),
            ("words", OneHotEncoder(**options), ["c", "d", "o"]),
        ]
    )
    return make_pipeline(columns, LogisticRegression()).fit(FRAME, THREE)


def mixed(model: Any, **options: Any) -> Pipeline:
    columns = ColumnTransformer(
        [
            ("text", TfidfVectorizer(), "t"),
            ("numbers", StandardScaler(), ["n"]),
            ("codes", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["d", "c"]),
            ("dense", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["c"]),
            ("left_out", "drop", ["o"]),
        ],
        transformer_weights={"text": 2.0},
        **options,
    )
    return make_pipeline(columns, model).fit(FRAME.drop(columns="m"), TWO)
