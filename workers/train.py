"""Train the example models that are not yet in the cache, and say how good and how fast each is.

    python -m workers.train

Doing it again changes nothing: what is in the cache is only measured.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from statistics import median
from typing import Any

from streamserve.datasets import cache_folder, sentiment_split, split
from streamserve.errors import StreamserveError
from streamserve.runtimes import ModelSpec, load

#: Each model and its options; `digits_cnn` only where torch is.
MODELS: dict[str, dict[str, Any]] = {
    "digits_linear": {},
    "digits_forest": {},
    "digits_neighbours": {},
    "digits_mlp": {},
    "digits_kernel": {},
    "digits_cnn": {"output": "logits"},
}
SENTIMENT = ("films", "products", "news", "tweets", "all")
BATCHES = (1, 8, 64)
REPEATS = 15


def main() -> int:
    """Train and measure every example model; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        for name, options in MODELS.items():
            if name == "digits_cnn" and importlib.util.find_spec("torch") is None:
                print("digits_cnn: left out, torch is not installed")
            else:
                print(report(name, options))
        for domain in SENTIMENT:
            print(sentiment_report(domain))
    except StreamserveError as trouble:
        print(trouble, file=sys.stderr)
        return trouble.exit_code
    print(f"kept in {cache_folder('models')}")
    return 0


def report(name: str, options: dict[str, Any]) -> str:
    """One line: seconds until ready, share of wrong answers on images never trained with, milliseconds a batch."""
    started_s = time.perf_counter()
    runtime = load(ModelSpec(name=name, version="1", source=f"workers.{name}:model", options=options))
    ready_s = time.perf_counter() - started_s
    data = split()
    images = data.test_images.astype(float)
    error = float((runtime.predict(images).labels != data.test_labels).mean())
    times = []
    for rows in BATCHES:
        batch = images[:rows]
        runtime.predict(batch)
        spent_ms = []
        for _ in range(REPEATS):
            started_s = time.perf_counter()
            runtime.predict(batch)
            spent_ms.append(1e3 * (time.perf_counter() - started_s))
        times.append(f"{rows}: {median(spent_ms):.2f} ms")
    return f"{name}: ready in {ready_s:.1f} s, {error:.1%} of unseen images wrong; a batch of {', '.join(times)}"


def sentiment_report(domain: str) -> str:
    """One line: seconds until ready, share of wrong answers on held-out texts of each domain."""
    started_s = time.perf_counter()
    runtime = load(ModelSpec(name=domain, version="1", source="workers.sentiment:model()", options={"domain": domain}))
    ready_s = time.perf_counter() - started_s
    data = sentiment_split()
    wrong = []
    for other in SENTIMENT[:-1]:
        rows = data.held_out & (data.domains == other)
        error = float((runtime.predict(data.texts[rows]).labels != data.labels[rows]).mean())
        wrong.append(f"{error:.1%} of {other}")
    return f"sentiment {domain}: ready in {ready_s:.1f} s, wrong about {', '.join(wrong)}"


if __name__ == "__main__":
    sys.exit(main())
