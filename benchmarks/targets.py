"""The numbers to reach, each as a ratio or a limit within one run, and whether this run reached them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results import Results

#: The hand-written loop must be good: otherwise being near it says nothing.
HONEST_HAND_TO_ECHO = 0.35
RATES_PER_S = (200.0, 1_000.0, 5_000.0)
_GROWTH_LIMIT = 1.5
_BACKLOG_LIMIT_S = 1.0
_MEMORY_LIMIT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    text: str
    measured: float | None
    """None: not measured in this run."""
    limit: float
    at_least: bool

    @property
    def reached(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def _at_least(text: str, measured: float | None, limit: float) -> Target:
    return Target(text=text, measured=measured, limit=limit, at_least=True)


def _at_most(text: str, measured: float | None, limit: float) -> Target:
    return Target(text=text, measured=measured, limit=limit, at_least=False)


def honesty(results: Results) -> Target:
    measured = results.ratio("drain", "hand", "echo", "rate_per_s")
    return _at_least("hand-written loop / echo, drained", measured, HONEST_HAND_TO_ECHO)


def _cpu_ms(results: Results, peer: str) -> float | None:
    seconds = results.median("drain", peer, "cpu_s_per_1000")
    return None if seconds is None else 1_000 * seconds


def _drain_targets(results: Results) -> list[Target]:
    adaptive = results.ratio("drain", "fused", "single", "rate_per_s")
    return [
        _at_least("fused / hand, drained", results.ratio("drain", "fused", "hand", "rate_per_s"), 0.8),
        _at_most("fused, CPU ms per 1,000", _cpu_ms(results, "fused"), 13),
        _at_most("three-hop, CPU ms per 1,000", _cpu_ms(results, "three-hop"), 26),
        _at_least("fused-16, requests/s", results.median("drain", "fused-16", "rate_per_s"), 20_000),
        _at_least("fused / single, drained", adaptive, 25),
    ]


def _latency_targets(results: Results) -> list[Target]:
    targets = []
    for rate in RATES_PER_S:
        p50 = results.ratio("latency", "fused", "hand", "p50_ms", rate)
        p99 = results.ratio("latency", "fused", "hand", "p99_ms", rate)
        targets += [
            _at_most(f"fused / hand, p50 at {rate:,.0f}/s", p50, 1.3),
            _at_most(f"fused / hand, p99 at {rate:,.0f}/s", p99, 2),
        ]
    chain = results.ratio("latency", "three-hop", "chain", "p50_ms", 1_000.0)
    return [*targets, _at_most("three-hop / chain, p50 at 1,000/s", chain, 1.5)]


def _sustained_targets(results: Results) -> list[Target]:
    rates = results.rates("sustained")
    if not rates:
        return []
    rate = rates[-1]
    start = results.median("sustained", "fused", "rss_start_mib", rate)
    end = results.median("sustained", "fused", "rss_mib", rate)
    memory = None if start is None or end is None else abs(end / start - 1)
    growth = results.median("sustained", "fused", "growth", rate)
    backlog = results.median("sustained", "fused", "backlog_s", rate)
    p99 = results.ratio("sustained", "fused", "hand", "p99_ms", rate)
    return [
        _at_most(f"fused / hand, p99 held at {rate:,.0f}/s", p99, 1.5),
        _at_most("fused, p50 of the last third / of the first", growth, _GROWTH_LIMIT),
        _at_most("fused, backlog at the end in s of requests", backlog, _BACKLOG_LIMIT_S),
        _at_most("fused, memory end / start - 1", memory, _MEMORY_LIMIT),
    ]


def targets(results: Results) -> list[Target]:
    """Those of streamserve; `honesty` stands apart, since without it none of them counts."""
    return [*_drain_targets(results), *_latency_targets(results), *_sustained_targets(results)]
