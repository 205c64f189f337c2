"""Renders cities: clips of their cameras and the truth about what is in them.

    python generate_city.py --out FOLDER --seed 1 --cities 24 --cameras 5 --seconds 25 --every 1.0
    python generate_city.py --out ../../examples/aicity/data --seed 3004 --cameras 4 --seconds 60 --quality 27 --shipped

Every city has a folder `city-NN`; with `--shipped` there is one, and its files lie in FOLDER itself:

- `camera-N.mp4`: all cameras start at the same moment, and frame k shows what was k times `--every` seconds later.
- `camera-N.txt`: rows `frame,id,left,top,width,height,flag,class,visibility` as MOTChallenge has them, frames counted from
  1, ids the same for all cameras, pixels, class 1 car, 2 van, 3 truck, 4 bus. Flag 0 marks what neither has to be found
  nor is a false alarm: less than 40 % visible, or less than 14 pixels wide or high.
- `cameras.csv`: where they hang and which road they look at. `vehicles.csv`: what the vehicles look like, and in
  which frames a camera sees them.
"""

import argparse
import csv
import multiprocessing
import pathlib

import numpy as np

from city import cameras, clips, rendering, roads, scenery, traffic, vehicles

LEAST_VISIBLE = 0.4
LEAST_SIDE = 14.0
WARM_UP = 45.0  # seconds until the streets have filled


class Vehicles:
    """Looks and shapes by number, made when a vehicle is first asked for."""

    def __init__(self, rng):
        self.rng, self.known = rng, {}

    def __getitem__(self, number):
        while number not in self.known:
            looks = vehicles.random_looks(self.rng)
            self.known[len(self.known)] = (looks, vehicles.shape_of(looks))
        return self.known[number]


def choose_cameras(rng, city, count):
    """Cameras at different junctions, or at the same one in different directions when there are not so many."""
    places = [((column, row), way) for column in range(city.columns) for row in range(city.rows)
              for way in roads.DIRECTIONS]
    inner = [p for p in places if city.is_junction((p[0][0] + p[1][0], p[0][1] + p[1][1]))]
    order = [inner[i] for i in rng.permutation(len(inner))]
    chosen, streets = [], set()
    for node, way in order:
        onward = (node[0] + way[0], node[1] + way[1])
        street = frozenset([node, onward])
        if len(chosen) < count and street not in streets and all(node != other for other, _ in chosen):
            chosen.append((node, way))
            streets.add(street)
    return [(cameras.hang(rng, f"camera-{number + 1}", city, node, way, bool(rng.random() < 0.75)), node, way)
            for number, (node, way) in enumerate(chosen)]


def flag(seen):
    return int(seen.visible >= LEAST_VISIBLE and min(seen.box[2:]) >= LEAST_SIDE)


def truth_row(frame, identity, seen):
    left, top, width, height = seen.box
    return [frame, identity, f"{left:.1f}", f"{top:.1f}", f"{width:.1f}", f"{height:.1f}", flag(seen),
            vehicles.CLASS_OF[seen.kind] + 1, f"{seen.visible:.2f}"]


def generate(folder, seed, options):
    """One city."""
    rng = np.random.default_rng([seed, 0])
    city = roads.Roads(rng)
    scene = scenery.Scenery(rng, city)
    day = seed if options.traffic is None else options.traffic + seed - options.seed
    known = Vehicles(np.random.default_rng([day, 1]))
    moving = traffic.Traffic(city, np.random.default_rng([day, 2]), lambda n: known[n][0].size[0], options.between)
    views = choose_cameras(rng, city, options.cameras)
    for camera, _, _ in views:
        scene.clear_view(camera)
    folder.mkdir(parents=True, exist_ok=True)
    fps = round(1 / options.every) if options.every < 1 else 1
    outputs = []
    for number, (camera, _, _) in enumerate(views):
        quality = options.quality or int(rng.integers(25, 34))
        outputs.append((rendering.View(scene, camera), np.random.default_rng([day, 3, number]),
                        clips.Writer(folder / f"{camera.name}.mp4", fps, quality, "slow" if options.shipped else "medium"), []))
    while moving.time < WARM_UP:
        moving.step()
    ids, first_last = {}, {}
    for frame in range(1, round(options.seconds / options.every) + 1):
        present = [(driver.number, *known[driver.number], *driver.pose()) for driver in moving.drivers]
        for view, noise, writer, rows in outputs:
            picture, seen = view.frame(present, noise)
            writer.write(picture)
            for item in seen:
                identity = ids.setdefault(item.number, len(ids) + 1)
                rows.append(truth_row(frame, identity, item))
                if flag(item):
                    span = first_last.setdefault((identity, view.camera.name), [frame, frame])
                    span[1] = frame
        for _ in range(round(options.every / traffic.STEP)):
            moving.step()
    for view, _, writer, rows in outputs:
        writer.close()
        write_rows(folder / f"{view.camera.name}.txt", rows)
    describe(folder, city, views, fps, {identity: known[n][0] for n, identity in ids.items()}, first_last)


def write_rows(path, rows):
    with open(path, "w", newline="") as target:
        csv.writer(target, lineterminator="\n").writerows(rows)


def describe(folder, city, views, fps, looks, first_last):
    rows = [["camera", "clip", "truth", "fps", "width", "height", "road", "x", "y", "z", "heading_degrees",
             "pitch_degrees", "focal_pixels"]]
    for camera, node, way in views:
        rows.append([camera.name, f"{camera.name}.mp4", f"{camera.name}.txt", fps, cameras.WIDTH, cameras.HEIGHT,
                     city.street_name(node, way), *(f"{v:.1f}" for v in camera.position),
                     f"{np.degrees(camera.yaw):.1f}", f"{np.degrees(camera.pitch):.1f}", f"{camera.focal:.0f}"])
    write_rows(folder / "cameras.csv", rows)
    rows = [["id", "type", "color", "accent", "side", "top", "camera", "first_frame", "last_frame"]]
    for (identity, camera), (first, last) in sorted(first_last.items()):
        it = looks[identity]
        colors = ["#" + "".join(f"{int(c):02x}" for c in color) for color in (it.color, it.accent)]
        rows.append([identity, it.kind, *colors, it.side, it.top, camera, first, last])
    write_rows(folder / "vehicles.csv", rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, required=True, help="of the first city; the next has the next seed")
    parser.add_argument("--traffic", type=int,
                        help="seed of the vehicles, where others are to pass the same cameras (default: that of the city)")
    parser.add_argument("--cities", type=int, default=1, help="how many (default: %(default)s)")
    parser.add_argument("--cameras", type=int, default=4, help="in each city, 6 at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="length of a clip (default: %(default)s)")
    parser.add_argument("--every", type=float, default=0.1, help="seconds between frames (default: %(default)s)")
    parser.add_argument("--between", type=float, default=0.55,
                        help="mean seconds between vehicles that come into a city (default: %(default)s)")
    parser.add_argument("--quality", type=int, help="constant rate factor of H.264 (default: 25 to 33 by chance)")
    parser.add_argument("--jobs", type=int, default=1, help="cities at a time (default: %(default)s)")
    parser.add_argument("--shipped", action="store_true", help="one city, its files in the folder itself")
    options = parser.parse_args()
    if options.shipped:
        if options.cities != 1:
            parser.error("--shipped takes one city")
        generate(options.out, options.seed, options)
        return
    work = [(options.out / f"city-{number:02}", options.seed + number, options) for number in range(options.cities)]
    with multiprocessing.Pool(options.jobs) as pool:
        pool.starmap(generate, [item for item in work if not (item[0] / "vehicles.csv").exists()], chunksize=1)


if __name__ == "__main__":
    main()
