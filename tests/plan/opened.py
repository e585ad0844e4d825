"""Fitted models of every class that plans have opened since the first ones: (model, texts or columns, labels)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PassiveAggressiveClassifier,
    PassiveAggressiveRegressor,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
)
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, PolynomialFeatures, StandardScaler
from sklearn.svm import LinearSVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from tests.plan.tables import HOLED, NUMBERS, ROWS, THREE, TWO, VALUES

LOGISTIC = LogisticRegression(max_iter=2000)
MIXED = np.where(np.arange(NUMBERS.shape[1]) == 4, np.round(np.abs(NUMBERS)) % 5, HOLED)
WORDS = ["good", "bad"] * 4

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated, and still in many artifacts
    PASSIVE = PassiveAggressiveClassifier(random_state=0), PassiveAggressiveRegressor(random_state=0)

#: Over `NUMBERS`: transformer, then a model that shows every bit of it.
FEATURES: dict[str, Any] = {
    "bins": KBinsDiscretizer(4, encode="ordinal", quantile_method="averaged_inverted_cdf"),
    "bins_one_hot": KBinsDiscretizer(3, encode="onehot", strategy="uniform"),
    "bins_dense": KBinsDiscretizer(3, encode="onehot-dense", strategy="uniform"),
    "polynomial": PolynomialFeatures(),
    "polynomial_3": PolynomialFeatures((2, 3), include_bias=False),
    "interactions": PolynomialFeatures(3, interaction_only=True),
    "function": FunctionTransformer(np.tanh, validate=True),
    "identity": FunctionTransformer(validate=True),
    "variance": VarianceThreshold(0.5),
    "best": SelectKBest(k=2),
    "from_model": SelectFromModel(DecisionTreeClassifier(random_state=0)),
    "pca": PCA(3),
    "pca_white": PCA(2, whiten=True),
    "svd": TruncatedSVD(2, random_state=0),
    "k_means": KMeans(4, random_state=0, n_init=1),
    "side_by_side": FeatureUnion([("pca", PCA(2)), ("centres", KMeans(3, random_state=0, n_init=1))]),
}
#: Over `HOLED`.
MISSING: dict[str, Any] = {
    "indicator": FeatureUnion([("marks", MissingIndicator(error_on_new=False)), ("values", SimpleImputer())]),
    "strict": FeatureUnion([("marks", MissingIndicator()), ("values", SimpleImputer())]),
    "all": FeatureUnion([("marks", MissingIndicator(features="all")), ("values", SimpleImputer())]),
    "added": SimpleImputer(add_indicator=True),
}
#: Model, rows, labels.
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "gaussian": (GaussianNB(), NUMBERS, THREE),
    "bernoulli": (BernoulliNB(binarize=0.3), NUMBERS, THREE),
    "multinomial": (MultinomialNB(), np.abs(NUMBERS), THREE),
    "complement": (ComplementNB(norm=True), np.abs(NUMBERS), THREE),
    "histogram_two": (HistGradientBoostingClassifier(max_iter=8, random_state=0), HOLED, TWO),
    "histogram_three": (HistGradientBoostingClassifier(max_iter=5, random_state=0), NUMBERS, THREE),
    "histogram_values": (HistGradientBoostingRegressor(max_iter=8, random_state=0), HOLED, VALUES),
    "histogram_counts": (
        HistGradientBoostingRegressor(loss="poisson", max_iter=8, random_state=0), HOLED, np.abs(VALUES),
    ),
    "histogram_categories": (
        HistGradientBoostingClassifier(max_iter=8, categorical_features=[4], min_samples_leaf=3), MIXED, TWO,
    ),
    "mlp_two": (make_pipeline(StandardScaler(), MLPClassifier((7, 5), max_iter=30, random_state=0)), NUMBERS, TWO),
    "mlp_three": (
        make_pipeline(StandardScaler(), MLPClassifier(6, activation="tanh", max_iter=30, random_state=0)),
        NUMBERS, THREE,
    ),
    "mlp_values": (
        make_pipeline(
            StandardScaler(),
            MLPRegressor(hidden_layer_sizes=5, activation="logistic", max_iter=30, random_state=0),
        ), NUMBERS, VALUES,
    ),
    "neighbours": (KNeighborsClassifier(3, algorithm="brute"), NUMBERS, THREE),
    "neighbours_values": (KNeighborsRegressor(4, algorithm="brute"), NUMBERS, VALUES),
    "passive_aggressive": (PASSIVE[0], NUMBERS, THREE),
    "passive_aggressive_values": (PASSIVE[1], NUMBERS, VALUES),
    "lasso": (Lasso(), NUMBERS, VALUES),
    "elastic": (ElasticNet(), NUMBERS, VALUES),
    "svr": (LinearSVR(random_state=0), NUMBERS, VALUES),
    "poisson": (make_pipeline(StandardScaler(), PoissonRegressor()), NUMBERS, np.abs(VALUES)),
    "voting_soft": (
        VotingClassifier(
            [("a", make_pipeline(StandardScaler(), LOGISTIC)), ("b", RandomForestClassifier(5, random_state=0))],
            voting="soft", weights=[2, 1],
        ), NUMBERS, THREE,
    ),
    "voting_hard": (
        VotingClassifier(
            [("a", GaussianNB()), ("b", DecisionTreeClassifier(random_state=0)), ("c", BernoulliNB())],
            weights=[1, 0.5, 0.7],
        ), NUMBERS, THREE,
    ),
    "voting_values": (
        VotingRegressor([("a", LinearRegression()), ("b", DecisionTreeRegressor(random_state=0))]), NUMBERS, VALUES,
    ),
    "stacking": (
        StackingClassifier(
            [("a", DecisionTreeClassifier(max_depth=3, random_state=0)), ("b", GaussianNB())], LOGISTIC, cv=2,
        ), NUMBERS, np.array(WORDS * (ROWS // 8)),
    ),
    "stacking_three": (
        StackingClassifier(
            [("a", DecisionTreeClassifier(max_depth=3, random_state=0)), ("b", Ridge())][:1], LOGISTIC, cv=2,
            passthrough=True,
        ), NUMBERS, THREE,
    ),
    "stacking_values": (
        StackingRegressor([("a", DecisionTreeRegressor(max_depth=3)), ("b", Ridge())], Ridge(), cv=2), NUMBERS, VALUES,
    ),
    "calibrated_sigmoid": (CalibratedClassifierCV(SGDClassifier(random_state=0), cv=2), NUMBERS, TWO),
    "calibrated_isotonic": (
        CalibratedClassifierCV(RandomForestClassifier(4, random_state=0), method="isotonic", cv=2), NUMBERS, THREE,
    ),
    "calibrated_pair": (
        CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=2, ensemble=False), NUMBERS, TWO,
    ),
}  # fmt: skip
#: Over texts that have UTF-8.
TEXTS: dict[str, Any] = {
    "hashed": make_pipeline(HashingVectorizer(n_features=1 << 10, ngram_range=(1, 2)), LOGISTIC),
    "hashed_unsigned": make_pipeline(HashingVectorizer(n_features=7, alternate_sign=False, norm="l1"), LOGISTIC),
    "hashed_characters": make_pipeline(
        HashingVectorizer(analyzer="char_wb", n_features=50, ngram_range=(1, 9), binary=True), LOGISTIC
    ),
    "hashed_regex": make_pipeline(
        HashingVectorizer(token_pattern=r"[^ ]+", n_features=50, norm=None, stop_words=["the"]), LOGISTIC
    ),
    "hashed_raw": make_pipeline(HashingVectorizer(analyzer="char", n_features=64, ngram_range=(2, 4)), LOGISTIC),
    "multinomial": make_pipeline(CountVectorizer(), MultinomialNB()),
    "complement": make_pipeline(TfidfVectorizer(), ComplementNB()),
    "bernoulli": make_pipeline(CountVectorizer(), BernoulliNB()),
    "bernoulli_weighted": make_pipeline(TfidfVectorizer(), BernoulliNB(binarize=0.2)),
    "best": make_pipeline(TfidfVectorizer(), SelectKBest(k=5), LOGISTIC),
    "latent": make_pipeline(TfidfVectorizer(), TruncatedSVD(2, random_state=0), LOGISTIC),
    "latent_pca": make_pipeline(TfidfVectorizer(), PCA(2, svd_solver="arpack", random_state=0), LOGISTIC),
    "centres": make_pipeline(TfidfVectorizer(), KMeans(3, random_state=0, n_init=1), LOGISTIC),
    "mlp": make_pipeline(TfidfVectorizer(), MLPClassifier(4, max_iter=20, random_state=0)),
    "voting": VotingClassifier(
        [("a", make_pipeline(TfidfVectorizer(), LOGISTIC)), ("b", make_pipeline(CountVectorizer(), MultinomialNB()))],
        voting="soft",
    ),
    "calibrated": CalibratedClassifierCV(make_pipeline(TfidfVectorizer(), SGDClassifier(random_state=0)), cv=2),
    "stacking": StackingClassifier(
        [("a", make_pipeline(TfidfVectorizer(), LOGISTIC)), ("b", make_pipeline(CountVectorizer(), MultinomialNB()))],
        LOGISTIC, cv=2,
    ),
}  # fmt: skip
