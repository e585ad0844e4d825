"""The simulated group coordinator: generations, session time-outs, eager rebalances, fenced commits.

A member that was thrown out is not told: it learns it from the answer to its next heartbeat or commit, and until then
goes on as if it owned its partitions (a zombie). Its commits are refused, its sends are not. Who joins under the name
of a static member takes its place, and its partitions: nothing is moved (KIP-345).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamserve.kafka.ports import At, Committed
from streamserve.testing.simulator.broker import SimulatedLog

#: How long a rebalance waits for members that do not come.
REBALANCE_TIMEOUT_MS = 10_000.0
#: A group that was empty waits so long for others to come before it gives out partitions.
_INITIAL_DELAY_MS = 5.0

Joined = Callable[[int, frozenset[At]], None]
"""Told to a member: its generation and its partitions."""


Observer = Callable[["Group", At, Committed], None]
"""Told of each commit that is accepted."""


class Membership:
    """One join of one process; a restart is another."""

    def __init__(self, name: str, session_ms: float, instance: str | None = None) -> None:
        """`instance`: its name, where it is a static member."""
        self.name, self.instance = name, instance
        self.session_ms = session_ms
        self.heard_at = 0.0
        self.joined: Joined | None = None
        """Waits to be told of the next generation; None: has been."""


class Group:
    """One consumer group of one topic."""

    def __init__(self, log: SimulatedLog, name: str, topic: str, observer: Observer) -> None:
        self._observer = observer
        self._log, self._world = log, log.world
        self.name, self.topic = name, topic
        self.generation = 0
        self.commits: dict[At, Committed] = {}
        self.owners: dict[At, Membership] = {}
        self.expired = 0
        self.refused_commits = 0
        self.rebalances = 0
        self.returned = 0
        """Static members whose place was taken under their name."""
        self._members: list[Membership] = []
        self._rebalancing = False
        self._round = 0

    def join(self, member: Membership, joined: Joined) -> None:
        """Answered by `joined` once every member has come, or the others are given up."""
        member.heard_at = self._world.now
        member.joined = joined
        if self._takes_a_place(member) and not self._rebalancing:
            member.joined = None
            joined(self.generation, frozenset(at for at, owner in self.owners.items() if owner is member))
            return
        if member not in self._members:
            self._members.append(member)
            self._watch(member)
        if not self._rebalancing:
            self._begin()
        self._complete_if_all_came()

    def _takes_a_place(self, member: Membership) -> bool:
        """Whether it has come instead of one of its name, who is no member any more."""
        if member.instance is None or member in self._members:
            return False
        for i, before in enumerate(self._members):
            if before.instance == member.instance:
                self._members[i] = member
                self.owners = {at: member if owner is before else owner for at, owner in self.owners.items()}
                self.returned += 1
                self._watch(member)
                return True
        return False

    def leave(self, member: Membership) -> None:
        if member in self._members:
            self._remove(member)

    def heartbeat(self, member: Membership, generation: int) -> str:
        """`ok`, `rebalance` (join again) or `unknown` (thrown out)."""
        if member not in self._members:
            return "unknown"
        member.heard_at = self._world.now
        return "rebalance" if self._rebalancing or generation != self.generation else "ok"

    def commit(self, member: Membership, generation: int, offsets: Mapping[At, Committed]) -> bool:
        if member not in self._members or generation != self.generation:
            self.refused_commits += 1
            return False
        member.heard_at = self._world.now
        for at, committed in sorted(offsets.items()):
            self.commits[at] = committed
            self._observer(self, at, committed)
        return True

    def _begin(self) -> None:
        self._rebalancing = True
        self._round += 1
        self._world.after(REBALANCE_TIMEOUT_MS, self._give_up, self._round)

    def _give_up(self, round_: int) -> None:
        if self._rebalancing and self._round == round_:
            for member in [member for member in self._members if member.joined is None]:
                self._members.remove(member)
            self._complete_if_all_came()

    def _complete_if_all_came(self) -> None:
        if self._rebalancing and self._members and all(member.joined is not None for member in self._members):
            delay = _INITIAL_DELAY_MS if self.generation == 0 else 0.0
            self._world.after(delay + self._world.delay(0.2, 2), self._complete, self._round)

    def _complete(self, round_: int) -> None:
        if not self._rebalancing or round_ != self._round:
            return
        if not self._members or any(member.joined is None for member in self._members):
            return
        self._rebalancing = False
        self.generation += 1
        self.rebalances += 1
        parts = self._log.partitions(self.topic)
        members = self._members
        self.owners = {at: members[i % len(members)] for i, at in enumerate(parts)}
        for member in members:
            joined, member.joined, member.heard_at = member.joined, None, self._world.now
            if joined is not None:
                mine = frozenset(at for at, owner in self.owners.items() if owner is member)
                joined(self.generation, mine)

    def _watch(self, member: Membership) -> None:
        self._world.at(member.heard_at + member.session_ms + 1, self._expire, member)

    def _expire(self, member: Membership) -> None:
        if member not in self._members:
            return
        # A broker that hears nobody throws nobody out; a new coordinator gives all members their session.
        away_until = max(self._log.away_until, self._log.leaders.none_until(self.name))
        if self._world.now < away_until or member.joined is not None:
            member.heard_at = max(member.heard_at, self._world.now, away_until)
        if self._world.now < member.heard_at + member.session_ms:
            self._watch(member)
            return
        self.expired += 1
        self._remove(member)

    def _remove(self, member: Membership) -> None:
        self._members.remove(member)
        self.owners = {at: owner for at, owner in self.owners.items() if owner is not member}
        if not self._members:
            self._rebalancing = False
            self.generation += 1
        elif not self._rebalancing:
            self._begin()
        else:
            self._complete_if_all_came()


class Coordinator:
    """The groups of one broker."""

    def __init__(self, log: SimulatedLog) -> None:
        self._log = log
        self.groups: dict[str, Group] = {}
        self.observer: Observer = lambda group, at, committed: None

    def group(self, name: str, topic: str) -> Group:
        if name not in self.groups:
            self.groups[name] = Group(self._log, name, topic, self.observer)
        return self.groups[name]
