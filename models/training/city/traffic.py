"""Vehicles that follow each other over the roads by the intelligent driver model (Treiber, Hennecke, Helbing, 2000).

One vehicle at a time has a way across a junction that crosses others; who waits first goes first.
"""

import dataclasses

import numpy as np

STEP = 0.1
SPEED_IN_TURNS = 5.5
LEAST_GAP = 2.2
HEADWAY = 1.1
BRAKING = 2.8


@dataclasses.dataclass
class Driver:
    """One vehicle on its route. `s` is the place of its front along the route."""

    number: int
    length: float
    desired: float  # m/s
    agility: float  # m/s^2
    segments: list
    s: float = 0.0
    speed: float = 0.0
    at: int = 0  # index of the segment where the front is
    granted: int = -1  # index of the last way across a junction that it may take
    waiting_since: float | None = None

    def __post_init__(self):
        lengths = [segment.length for segment in self.segments]
        self.starts = np.concatenate([[0], np.cumsum(lengths)])
        points = [self.segments[0].points[:1]]
        points += [segment.points[1:] for segment in self.segments]
        self.points = np.concatenate(points)
        steps = np.diff(self.points, axis=0)
        self.along = np.concatenate([[0], np.cumsum(np.hypot(steps[:, 0], steps[:, 1]))])

    def place(self, s):
        return np.array([np.interp(s, self.along, self.points[:, 0]), np.interp(s, self.along, self.points[:, 1])])

    def pose(self):
        """Middle and heading: the axles stand on the route."""
        front, rear = self.place(self.s - 0.18 * self.length), self.place(self.s - 0.8 * self.length)
        way = front - rear
        return (front + rear) / 2, float(np.arctan2(way[1], way[0]))


class Traffic:
    """All vehicles of a city. `length_of` gives the length of the vehicle of a number."""

    def __init__(self, roads, rng, length_of, every):
        self.roads, self.rng, self.length_of = roads, rng, length_of
        self.every = every  # mean seconds between vehicles that come in
        self.drivers, self.count, self.time = [], 0, 0.0
        self.next_entry = 0.0

    def _enter(self):
        entries = self.roads.entries()
        order = self.rng.permutation(len(entries))
        for index in order:
            node, direction = entries[index]
            lane = self.roads.lane(node, direction)
            ahead = [d for d in self.drivers if d.segments[d.at] is lane]
            if all(d.s - d.length > 14 for d in ahead):
                number = self.count
                self.count += 1
                length = self.length_of(number)
                heavy = length > 6
                desired = self.rng.uniform(7.5, 10) if heavy else self.rng.uniform(8.5, 13)
                route = self.roads.route(self.rng, node, direction)
                driver = Driver(number, length, desired, self.rng.uniform(0.9, 1.3) if heavy else
                                self.rng.uniform(1.5, 2.4), route, s=length, speed=desired * 0.7)
                self.drivers.append(driver)
                return

    def _by_segment(self):
        """Vehicles on each segment, also those whose rear is still on it."""
        found = {}
        for driver in self.drivers:
            for index in range(driver.at, -1, -1):
                if driver.starts[index + 1] < driver.s - driver.length:
                    break
                offset = driver.s - driver.starts[index]
                found.setdefault(driver.segments[index].name, []).append((offset, driver))
        return found

    def _gap_ahead(self, driver, on):
        """Free metres to the next vehicle on the way, and its speed."""
        for index in range(driver.at, min(driver.at + 4, len(driver.segments))):
            mine = driver.s - driver.starts[index]
            ahead = [(offset - other.length - mine, other.speed)
                     for offset, other in on.get(driver.segments[index].name, [])
                     if other is not driver and offset > mine]
            if ahead:
                return min(ahead)
        return 1e3, driver.desired

    def _may_cross(self, driver, index, on):
        """Whether the way across a junction at this index of its route is free, and the lane behind it."""
        mine = driver.segments[index]
        for name, there in on.items():
            other = self.roads.segments.get(name)
            if other is None or other.junction != mine.junction or other is mine:
                continue
            if self.roads.in_conflict(mine, other) and any(d is not driver for _, d in there):
                return False
        for other in self.drivers:
            if other is driver or other.granted <= other.at:
                continue
            theirs = other.segments[other.granted]
            if theirs.junction == mine.junction and theirs is not mine and self.roads.in_conflict(mine, theirs):
                return False
        behind = on.get(driver.segments[index + 1].name, [])
        return all(offset - other.length > driver.length + 3 or other.speed > 4 for offset, other in behind)

    def step(self):
        self.time += STEP
        if self.time >= self.next_entry:
            self._enter()
            self.next_entry = self.time + self.rng.exponential(self.every)
        on = self._by_segment()
        waiting = sorted(self.drivers, key=lambda d: (d.waiting_since is None, d.waiting_since or 0, d.number))
        for driver in waiting:
            following = driver.at + 1
            if driver.segments[driver.at].junction is None and following < len(driver.segments) \
                    and driver.granted < following:
                distance = driver.starts[following] - driver.s
                if distance < 4 + driver.speed**2 / (2 * BRAKING) + driver.speed:
                    if self._may_cross(driver, following, on):
                        driver.granted, driver.waiting_since = following, None
                    elif driver.waiting_since is None:
                        driver.waiting_since = self.time
        for driver in self.drivers:
            self._move(driver, on)
        self.drivers = [d for d in self.drivers if d.s - d.length < d.starts[-1]]

    def _move(self, driver, on):
        gap, ahead = self._gap_ahead(driver, on)
        following = driver.at + 1
        desired = driver.desired
        if following < len(driver.segments):
            distance = driver.starts[following] - driver.s
            if driver.segments[driver.at].junction is None and driver.granted < following:
                if distance < gap:
                    gap, ahead = max(distance - 0.5, 0.05), 0.0
            elif len(driver.segments[following].points) > 2:
                # Slow enough for the turn when it begins.
                desired = min(desired, np.sqrt(SPEED_IN_TURNS**2 + 2 * 1.8 * max(distance, 0)))
        if len(driver.segments[driver.at].points) > 2:
            desired = min(desired, SPEED_IN_TURNS)
        wanted = LEAST_GAP + max(0.0, driver.speed * HEADWAY + driver.speed * (driver.speed - ahead)
                                 / (2 * np.sqrt(driver.agility * BRAKING)))
        change = driver.agility * (1 - (driver.speed / desired) ** 4 - (wanted / max(gap, 0.1)) ** 2)
        driver.speed = max(0.0, driver.speed + max(change, -7.0) * STEP)
        driver.s += driver.speed * STEP
        while driver.at + 1 < len(driver.segments) and driver.s >= driver.starts[driver.at + 1]:
            driver.at += 1
