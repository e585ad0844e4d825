"""Digits by a small convolutional network (needs torch; in the config: options.output = "logits")."""

from __future__ import annotations

from torch import nn

from workers.trained_torch import trained_network


def network() -> nn.Sequential:
    """Pixels `[n, 784]` of 0-255 in, logits `[n, 10]` out; the first normalisation learns the pixels' scale."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.BatchNorm2d(1),
        *(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 5, stride=2, padding=2), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


model = trained_network("digits_cnn", network)
