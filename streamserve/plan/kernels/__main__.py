"""`python -m streamserve.plan.kernels`: compile the kernels into the cache, so that no process waits for it later."""

from __future__ import annotations

import sys
import time

from streamserve.plan.kernels import compilations, warm

if __name__ == "__main__":
    started_s = time.perf_counter()
    warm()
    sys.stdout.write(f"kernels: {compilations()} compiled, ready in {time.perf_counter() - started_s:.1f} s\n")
