"""What a fault of the plan does to the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamserve.core.stages.join_partition import number_in
from streamserve.kafka.ports import At
from streamserve.testing.simulator.app import APP, MODELS
from streamserve.testing.simulator.plan import Fault
from streamserve.testing.simulator.processes import SimulatedProcess

if TYPE_CHECKING:
    from streamserve.testing.simulator.simulation import Simulation

_STOPPED_LOOK_MS = 100.0

#: After an election: how far what is known of learnt states reaches is asked again within so long.
_SEEN_MS = 200.0


class Trouble:
    """Makes the faults of a plan happen."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._log, self._world = simulation.log, simulation.world

    def happen(self, fault: Fault) -> None:
        match fault.kind:
            case "away":
                self._log.away_until = max(self._log.away_until, self._world.now + fault.for_ms)
                self._simulation.count("broker away")
                self._simulation.told("broker", f"cannot be reached for {fault.for_ms:.0f} ms")
                self._simulation.slow(self._world.now, self._world.now + fault.for_ms + 600)
            case "leader" if fault.point:
                self._log.dies_with_an_append = lambda broker: self._lose_leader(fault._replace(number=broker))
            case "leader":
                self._lose_leader(fault)
            case "compact":
                before = self._log.compacted_records
                self._log.compact()
                if self._log.compacted_records > before:
                    self._simulation.count("compaction")
            case "retain":
                self._retain()
            case "delete":
                self._delete(int(fault.point), fault.number)
            case "deploy":
                self._deploy(fault)
            case "outage":
                self._outage(fault)
            case _:
                self._happen_to(self._simulation.processes[fault.process], fault)

    def _lose_leader(self, fault: Fault) -> None:
        if self._log.lose_leader(fault.number, fault.for_ms):
            self._simulation.count("leader lost")
            self._simulation.told("broker", f"{fault.number} dies, and is fenced after {fault.for_ms:.0f} ms")
            self._simulation.slow(self._world.now, self._world.now + fault.for_ms + 600)
            self._simulation.seen.leaderless.append((self._world.now, self._world.now + fault.for_ms + _SEEN_MS))

    def _happen_to(self, process: SimulatedProcess, fault: Fault) -> None:  # noqa: PLR0912  (one a kind)
        world, simulation = self._world, self._simulation
        session_ms = simulation.plan.form.session_ms
        match fault.kind:
            case "start":
                simulation.count("late start")
                process.start()
            case "crash" if fault.point and process.alive:
                effects = process.effects
                n = fault.number + (effects.sends if "send" in fault.point else effects.commits)
                effects.crash_at[fault.point, n] = lambda: self._crash(process, fault)
            case "crash":
                self._crash(process, fault)
            case "pause" if process.alive and process.machine is not None:
                simulation.count("pause beyond session" if fault.for_ms > session_ms else "pause")
                process.machine.stop_until(world.now + fault.for_ms)
                simulation.told(process.form.name, f"is stopped for {fault.for_ms:.0f} ms")
                simulation.slow(world.now, world.now + fault.for_ms + 200)
            case "stop":
                if process.request_stop():
                    simulation.count("stop")
                    simulation.told(process.form.name, "is asked to stop")
                    simulation.bad(world.now, world.now + 600)
                    world.after(fault.for_ms, self._start_when_gone, process)
            case "hand":
                if process.request_stop(hands_over=True):
                    simulation.count("hand-over")
                    simulation.told(process.form.name, "is asked to hand over to its twin")
                    simulation.bad(world.now, world.now + 600)
            case "sends":
                process.effects.send_fates.extend([fault.point] * fault.number)
            case "commits":
                process.effects.commit_fates.extend([fault.point] * fault.number)
            case "model":
                self._break_model(process, fault)
            case "follower":
                if process.follow_late((simulation.topics.epochs, MODELS), fault.for_ms):
                    simulation.count("learnt states read late")
                    simulation.told(process.form.name, f"reads learnt states {fault.for_ms:.0f} ms late")

    def _outage(self, fault: Fault) -> None:
        """Whoever writes terminal records is killed, and comes back when most of them are late."""
        simulation = self._simulation
        simulation.count("outage")
        role = "worker" if simulation.plan.form.fused else "aggregate"
        for process in simulation.processes.values():
            if process.form.role == role or fault.point == "all":
                process.kill()
                process.gone_until = self._world.now + fault.for_ms
                process.start()

    def _crash(self, process: SimulatedProcess, fault: Fault) -> None:
        words = f"is killed {fault.point}" if fault.point else "is killed"
        if process.kill(words):
            self._simulation.count(f"crash {fault.point}".strip())
            self._simulation.bad(self._world.now - 100, self._world.now + 200)
            self._world.after(fault.for_ms, process.start)

    def _start_when_gone(self, process: SimulatedProcess) -> None:
        if process.alive and process.stopping:
            self._world.after(_STOPPED_LOOK_MS, self._start_when_gone, process)
        else:
            process.start()

    def _break_model(self, process: SimulatedProcess, fault: Fault) -> None:
        key = (process.form.name, fault.model)
        self._simulation.weather.modes[key] = fault.point
        self._simulation.told(process.form.name, f"{fault.model}: calls {fault.point} for {fault.for_ms:.0f} ms")
        self._world.after(fault.for_ms, self._mend_model, process, key, fault)

    def _mend_model(self, process: SimulatedProcess, key: tuple[str, str], fault: Fault) -> None:
        if self._simulation.weather.modes.get(key) == fault.point:
            del self._simulation.weather.modes[key]
        if fault.point == "hang":  # somebody notices, and kills it
            self._crash(process, fault._replace(point="", for_ms=100.0))

    # -- the log ---------------------------------------------------------------------------------------------------

    def _retain(self) -> None:
        """As retention would: what no commit needs any more is deleted. A restarted owner reads nothing of it."""
        topics, deleted = self._simulation.topics, 0
        for number in range(self._simulation.plan.form.partitions):
            left = self._simulation.left_of_outages.get(number)
            answers, predictions = (1 << 62, 1 << 62) if left is None else (left.answers, left.predictions)
            needs = {
                topics.answers: min(answers, self._needed(number, {"terminal": "answers", "join": "answers_from"})),
                topics.predictions: min(
                    predictions, self._needed(number, {"terminal": "predictions", "join": "predictions_from"})
                ),
                topics.feedback: self._needed(number, {"join": "rebuild_from"}),
            }
            for topic, offset in needs.items():
                part = self._log.partition(At(topic, number))
                before = part.index(part.start)
                self._log.delete_before(At(topic, number), offset)
                deleted += part.index(part.start) - before
        if deleted:
            self._simulation.count("retention")
            self._simulation.told("broker", f"deletes {deleted} old records")

    def _needed(self, number: int, names: dict[str, str]) -> int:
        """The lowest offset that the newest commits of these groups say that a new owner needs."""
        found = []
        for group, name in names.items():
            groups = self._simulation.env.coordinator.groups
            commits = {} if (known := groups.get(f"{APP}.{group}")) is None else known.commits
            mine = [committed.metadata for at, committed in commits.items() if at.partition == number]
            found.append(number_in(mine[0], name) if mine else 0)
        return min(found)

    def _delete(self, number: int, hundredths: int) -> None:
        """As DeleteRecords: so much of what no group has committed yet."""
        simulation = self._simulation
        at = At(simulation.topics.requests, number)
        part = self._log.partition(at)
        groups = simulation.env.coordinator.groups.values()
        commits = [group.commits[at].offset for group in groups if at in group.commits]
        first = max(min(commits, default=0), part.start)
        before = first + (part.stable - first) * hundredths // 100
        if before <= part.start:
            return
        self._log.delete_before(at, before)
        lost = simulation.clients.deleted(number, part.start)
        simulation.count("requests deleted")
        simulation.told("broker", f"deletes requests {number} below {part.start}; {lost} of them are not answered")
        simulation.bad(self._world.now - 100, self._world.now + 600)

    # -- a deploy --------------------------------------------------------------------------------------------------

    def _deploy(self, fault: Fault) -> None:
        """Each process in turn is restarted with the new config, as a rolling deploy does."""
        simulation = self._simulation
        if not simulation.plan.form.deployed:
            return
        simulation.count("deploy")
        simulation.told("operator", "begins to deploy")
        simulation.env.deploy_ms = self._world.now
        processes = list(simulation.processes.values())
        first = fault.number % len(processes)
        for i, process in enumerate(processes[first:] + processes[:first]):
            self._world.after(i * fault.for_ms, self._roll, process)

    def _roll(self, process: SimulatedProcess) -> None:
        process.variant = 1
        if process.request_stop():
            self._simulation.told(process.form.name, "is asked to stop, to come back with the new config")
            self._simulation.bad(self._world.now, self._world.now + 600)
            self._world.after(_STOPPED_LOOK_MS, self._start_when_gone, process)
