"""Renders many vehicles, each by many cameras: what the appearance embeddings learn from besides the cities.

    python generate_looks.py --out FOLDER --seed 4000 --groups 40

In a city, few vehicles come by, and those that do mostly look the same way into a camera. Here they stand anywhere on the
roads that a camera sees, and the same ones stand before the cameras of several cities, in other light. Nothing moves, so
detectors and trackers learn nothing from it.

Every group has a folder `city-NN` as generate_city.py writes it, with `camera-N.mp4` and `camera-N.txt`; ids are the same for
all cameras of a group.
"""

import argparse
import multiprocessing
import pathlib

import numpy as np

from city import cameras, clips, rendering, roads, scenery
from generate_city import Vehicles, choose_cameras, flag, truth_row, write_rows

CITIES = 3  # whose cameras see the vehicles of a group
CAMERAS = 4  # of each city
AT_A_TIME = 40  # vehicles that are on show
VIEWS = 14  # of a vehicle, until another one takes its turn
FARTHEST = 60.0  # metres
APART = 2.9  # metres between the middle lines of two vehicles


def places(city, camera):
    """Where the middle of a vehicle may be, with its heading: every metre of the lanes that a camera sees."""
    found = []
    for column in range(-1, city.columns + 1):
        for row in range(-1, city.rows + 1):
            for way in roads.DIRECTIONS:
                node, onward = (column, row), (column + way[0], row + way[1])
                if not city.is_junction(node) and not city.is_junction(onward):
                    continue
                segments = [city.lane(node, way)]
                if city.is_junction(node):
                    segments += [city.crossing(node, before, way) for before in roads.DIRECTIONS
                                 if (-before[0], -before[1]) != way]
                for segment in segments:
                    points = roads.dense(segment.points, 1.0)
                    headings = np.arctan2(*np.gradient(points, axis=0).T[::-1])
                    found += [(*point, heading) for point, heading in zip(points, headings)]
    found = np.array(found)
    pixels, depth = camera.project(np.column_stack([found[:, :2], np.full(len(found), 0.8)]))
    away = np.hypot(*(found[:, :2] - camera.position[:2]).T)
    inside = (pixels > 8).all(axis=1) & (pixels[:, 0] < cameras.WIDTH - 8) & (pixels[:, 1] < cameras.HEIGHT - 8)
    return found[inside & (depth > 6) & (away < FARTHEST)]


def middle_line(place, length):
    along = np.array([np.cos(place[2]), np.sin(place[2])])
    return place[:2] + along * (np.linspace(-0.5, 0.5, 5)[:, None] * max(length - 1.5, 0.1))


def scatter(rng, spots, vehicles, count):
    """So many of the vehicles, where they do not touch: (number, looks, shape, middle, heading)."""
    present, lines = [], []
    for number in rng.permutation(list(vehicles)):
        looks, shape = vehicles[int(number)]
        for spot in spots[rng.integers(len(spots), size=6)]:
            line = middle_line(spot, looks.size[0])
            if all(np.hypot(*(line[:, None] - other[None]).transpose(2, 0, 1)).min() > APART for other in lines):
                lines.append(line)
                present.append((int(number), looks, shape, spot[:2], float(spot[2])))
                break
        if len(present) == count:
            break
    return present


def generate(folder, seed, rounds):
    """One group."""
    rng = np.random.default_rng([seed, 0])
    known = Vehicles(np.random.default_rng([seed, 1]))
    folder.mkdir(parents=True, exist_ok=True)
    views = []
    for _ in range(CITIES):
        city = roads.Roads(rng)
        scene = scenery.Scenery(rng, city)
        hung = choose_cameras(rng, city, CAMERAS)
        for camera, _, _ in hung:
            scene.clear_view(camera)
        for camera, _, _ in hung:
            spots = places(city, camera)
            if len(spots):
                name = f"camera-{len(views) + 1:02}"
                writer = clips.Writer(folder / f"{name}.mp4", 1, int(rng.integers(25, 34)))
                noise = np.random.default_rng([seed, 3, len(views)])
                views.append((name, rendering.View(scene, camera), spots, noise, writer, []))
    on_show = {number: known[number] for number in range(AT_A_TIME)}
    seen_times, following = dict.fromkeys(on_show, 0), AT_A_TIME
    for frame in range(1, rounds + 1):
        for _, view, spots, noise, writer, rows in views:
            picture, seen = view.frame(scatter(rng, spots, on_show, int(rng.integers(4, 12))), noise)
            writer.write(picture)
            for item in seen:
                rows.append(truth_row(frame, item.number + 1, item))
                seen_times[item.number] += flag(item)
            for number in [number for number in on_show if seen_times[number] >= VIEWS]:
                del on_show[number]
                on_show[following], seen_times[following] = known[following], 0
                following += 1
    for name, _, _, _, writer, rows in views:
        writer.close()
        write_rows(folder / f"{name}.txt", rows)
    (folder / "done").touch()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, required=True, help="of the first group; the next has the next seed")
    parser.add_argument("--groups", type=int, default=40, help="how many (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="frames of each camera (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="groups at a time (default: %(default)s)")
    options = parser.parse_args()
    work = [(options.out / f"city-{number:02}", options.seed + number, options.rounds) for number in range(options.groups)]
    with multiprocessing.Pool(options.jobs) as pool:
        pool.starmap(generate, [item for item in work if not (item[0] / "done").exists()], chunksize=1)


if __name__ == "__main__":
    main()
