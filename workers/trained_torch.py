"""Train a torch network once, keep its weights in the cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import torch
from torch import nn

from streamserve.datasets import split
from workers.trained import model_file

EPOCHS = 6
ROWS_A_STEP = 64

logger = logging.getLogger(__name__)


def trained_network(name: str, build: Callable[[], nn.Module]) -> nn.Module:
    """`build()` with weights fitted on MNIST's training images: from the cache, or trained now and kept there."""
    torch.manual_seed(0)
    network = build()
    file = model_file(name, f"{network} {EPOCHS} {ROWS_A_STEP}", torch.__version__, "pt")
    if not file.is_file():
        logger.info("training %s", name)
        _fit(network)
        part = file.with_name(f"{file.name}.{os.getpid()}.part")
        torch.save(network.state_dict(), part)
        part.replace(file)
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network.eval()


def _fit(network: nn.Module) -> None:
    data = split()
    images, labels = torch.from_numpy(data.train_images).float(), torch.from_numpy(data.train_labels)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    loss = nn.CrossEntropyLoss()
    torch.set_num_threads(1)  # more are slower where others work, too
    network.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(ROWS_A_STEP):
            optimizer.zero_grad()
            loss(network(images[rows]), labels[rows]).backward()
            optimizer.step()
