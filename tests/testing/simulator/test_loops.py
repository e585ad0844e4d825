"""Loops in virtual time: asyncio's own tools work on them, and the scheduler decides when."""

from __future__ import annotations

import asyncio

import pytest

from streamserve.testing.simulator.clock import MachineClock
from streamserve.testing.simulator.world import Machine, World


def machine_in(world: World, rate: float = 1.0, skew_ms: float = 0.0) -> Machine:
    return Machine(world, MachineClock(world.clock, rate=rate, skew_ms=skew_ms))


async def sleeper(seen: list[float], world: World, *delays_s: float) -> None:
    for delay_s in delays_s:
        await asyncio.sleep(delay_s)
        seen.append(round(world.now, 3))


def test_sleeps_and_time_outs_take_virtual_time_only() -> None:
    world, seen = World(0), list[float]()
    machine = machine_in(world)

    async def work() -> None:
        await sleeper(seen, world, 1.0, 3_600.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        seen.append(round(world.now, 3))

    task = machine.loop.create_task(work())
    world.run(1e9)
    task.result()
    assert seen == [1_000.0, 3_601_000.0, 3_606_000.0]


def test_a_clock_that_runs_fast_wakes_early() -> None:
    world, seen = World(0), list[float]()
    machine = machine_in(world, rate=2.0, skew_ms=-500)
    machine.loop.create_task(sleeper(seen, world, 1.0))
    world.run(500.0)
    assert seen == [500.0]
    assert machine.clock.epoch() * 1000 == pytest.approx(1_700_000_000_000 - 500 + 1_000)


def test_a_stopped_machine_goes_on_later_and_a_dead_one_never() -> None:
    world, stopped, dead = World(0), list[float](), list[float]()
    first, second = machine_in(world), machine_in(world)
    first.loop.create_task(sleeper(stopped, world, 0.1, 0.1))
    second.loop.create_task(sleeper(dead, world, 0.1, 0.1))
    world.at(150, first.stop_until, 5_000)
    world.at(150, second.kill)
    world.run(10_000)
    assert stopped == [100.0, 5_000.0]
    assert dead == [100.0]
    second.loop.bury()
    assert not asyncio.all_tasks(second.loop)


def test_what_happens_at_one_time_is_told_apart_by_the_seed_alone() -> None:
    def order(seed: int) -> list[int]:
        world, seen = World(seed), list[int]()
        for number in range(8):
            world.at(5, seen.append, number)
        world.run(10)
        return seen

    assert order(1) == order(1)
    assert order(1) != order(2)
