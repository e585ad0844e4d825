"""Digits by a neural network with one hidden layer."""

from __future__ import annotations

from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from workers.trained import trained

network = MLPClassifier(hidden_layer_sizes=(100,), max_iter=20, random_state=0)
optimizer = "sklearn.neural_network._stochastic_optimizers.AdamOptimizer"  # skops asks for it to be named
model = trained("digits_mlp", make_pipeline(MinMaxScaler(), network), trusted=(optimizer,))
