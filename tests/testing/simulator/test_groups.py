"""The coordinator: who is thrown out is a zombie whose commits are refused."""

from __future__ import annotations

from streamserve.kafka.ports import At, Committed
from streamserve.testing.simulator.broker import SimulatedLog
from streamserve.testing.simulator.groups import Coordinator, Group, Membership
from streamserve.testing.simulator.world import World

Told = list[tuple[str, int, list[int]]]


def group_of(world: World, partitions: int = 2) -> Group:
    return Coordinator(SimulatedLog(world, {"t": partitions})).group("g", "t")


def join(group: Group, member: Membership, told: Told) -> None:
    def joined(generation: int, mine: frozenset[At]) -> None:
        told.append((member.name, generation, sorted(at.partition for at in mine)))

    group.join(member, joined)


def commit_of(offset: int) -> dict[At, Committed]:
    return {At("t", 0): Committed(offset=offset, metadata="")}


def test_a_second_member_waits_for_the_first_to_come_again() -> None:
    world, told = World(0), Told()
    group = group_of(world)
    first, second = Membership("a", 1_000), Membership("b", 1_000)
    join(group, first, told)
    world.run(50)
    join(group, second, told)
    world.run(100)
    assert told == [("a", 1, [0, 1])]
    assert group.heartbeat(first, 1) == "rebalance"
    join(group, first, told)
    world.run(150)
    assert told[1:] == [("a", 2, [0]), ("b", 2, [1])]


def test_who_joins_under_the_name_of_a_static_member_takes_its_place_and_nothing_moves() -> None:
    world, told = World(0), Told()
    group = group_of(world)
    first, other = Membership("a#1", 1_000, "a"), Membership("b#1", 1_000, "b")
    join(group, first, told)
    join(group, other, told)
    world.run(50)
    mine = next(numbers for name, _, numbers in told if name == "a#1")
    again = Membership("a#2", 1_000, "a")
    join(group, again, told)
    assert told[-1] == ("a#2", group.generation, mine)
    assert group.heartbeat(other, group.generation) == "ok"
    assert group.heartbeat(first, group.generation) == "unknown"
    assert not group.commit(first, group.generation, commit_of(5))
    assert group.commit(again, group.generation, commit_of(5))
    world.run(5_000)  # all are silent: nobody's session outlives that
    assert group.owners == {}


def test_a_silent_member_is_thrown_out_and_its_commits_are_refused() -> None:
    world, told = World(0), Told()
    group = group_of(world)
    member = Membership("a", 1_000)
    join(group, member, told)
    world.run(100)
    assert group.commit(member, 1, commit_of(5))
    world.run(2_000)
    assert not group.commit(member, 1, commit_of(9))
    assert group.heartbeat(member, 1) == "unknown"
    assert group.commits[At("t", 0)].offset == 5
    assert (group.expired, group.refused_commits) == (1, 1)


def test_a_member_that_is_heard_stays() -> None:
    world, told = World(0), Told()
    group = group_of(world)
    member = Membership("a", 1_000)
    join(group, member, told)
    for at_ms in range(100, 5_000, 300):
        world.at(at_ms, group.heartbeat, member, 1)
    world.run(5_000)
    assert group.commit(member, 1, commit_of(5))


def test_a_commit_of_an_older_generation_is_refused() -> None:
    world, told = World(0), Told()
    group = group_of(world)
    first, second = Membership("a", 9_000), Membership("b", 9_000)
    join(group, first, told)
    world.run(50)
    join(group, second, told)
    join(group, first, told)
    world.run(100)
    assert not group.commit(first, 1, commit_of(5))
    assert group.commit(first, 2, commit_of(5))
