//! Layout of boxes and arrows: layers from left to right, few crossings, straight lines where possible.
//!
//! The method is Sugiyama's, small: longest paths give the layers, arrows over several layers get a bend in each,
//! barycentres order the layers, isotonic regression gives each layer the positions nearest to its neighbours. Nothing
//! depends on chance or on the order of hash maps: a graph always has one layout.

/// A box to place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Item {
    /// Width.
    pub(crate) width: f64,
    /// Height.
    pub(crate) height: f64,
    /// Number of its lane: a band over the whole width.
    pub(crate) lane: usize,
}

/// An arrow between two boxes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Link {
    /// Index of the box it leaves.
    pub(crate) from: usize,
    /// Index of the box it enters.
    pub(crate) to: usize,
    /// Width of its label.
    pub(crate) label: f64,
}

/// A placed box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rectangle {
    /// Left edge.
    pub(crate) x: f64,
    /// Upper edge.
    pub(crate) y: f64,
    /// Width: that of the widest box of its layer.
    pub(crate) width: f64,
    /// Height.
    pub(crate) height: f64,
}

/// A point.
pub(crate) type Point = (f64, f64);

/// Positions of everything; the upper left corner is (0, 0).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    /// Boxes, in the order they were given.
    pub(crate) boxes: Vec<Rectangle>,
    /// Points of each arrow, alternately at the end and the start of a layer.
    pub(crate) routes: Vec<Vec<Point>>,
    /// Upper edge and height of each lane.
    pub(crate) lanes: Vec<(f64, f64)>,
    /// Width of all.
    pub(crate) width: f64,
    /// Height of all.
    pub(crate) height: f64,
}

/// Room between boxes of one layer.
const ROW_GAP: f64 = 22.0;
/// Room between layers, without labels of the arrows.
const LAYER_GAP: f64 = 56.0;
/// Height of a bend.
const BEND: f64 = 10.0;
/// Times that the order of all layers is improved.
const SWEEPS: usize = 12;
/// Times that the places in the layers are improved; from `BOTH` on between both neighbours. The last time goes from
/// left to right by the neighbours before, so that chains are straight.
const PLACINGS: usize = 49;
const BOTH: usize = 10;

/// Places boxes and arrows. `lane_head` is the room above the boxes of a lane, `lane_gap` that between lanes.
pub(crate) fn place(items: &[Item], links: &[Link], lane_head: f64, lane_gap: f64) -> Layout {
    let layer_of = layers(items.len(), links);
    let mut graph = Layered::new(items, links, &layer_of);
    graph.order();
    let (middles, lanes) = graph.rows(lane_head, lane_gap);
    let (columns, width) = graph.columns(links, &layer_of);
    let boxes: Vec<Rectangle> = (0..items.len())
        .map(|node| {
            let (x, width) = columns[layer_of[node]];
            let height = items[node].height;
            Rectangle { x, y: middles[node] - height / 2.0, width, height }
        })
        .collect();
    let routes = graph.routes(links, &boxes, &middles, &columns);
    let height = lanes.last().map_or(0.0, |(y, height)| y + height);
    Layout { boxes, routes, lanes, width, height }
}

/// Returns the layer of each box: one more than the furthest box before it; sources are just before their readers.
fn layers(count: usize, links: &[Link]) -> Vec<usize> {
    let mut layer = vec![0; count];
    // Enough rounds for the longest path; bounded even for a cycle, which no checked workflow has.
    for _ in 0..count {
        let mut changed = false;
        for link in links.iter().filter(|link| link.from != link.to) {
            let least = layer[link.from] + 1;
            if layer[link.to] < least && least < count.max(1) {
                layer[link.to] = least;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    for node in 0..count {
        let first = links.iter().all(|link| link.to != node);
        let next = links.iter().filter(|link| link.from == node).map(|link| layer[link.to]).min();
        if let (true, Some(next)) = (first, next) {
            layer[node] = next.saturating_sub(1);
        }
    }
    layer
}

/// Boxes and bends in layers.
struct Layered {
    items: Vec<Item>,
    /// Boxes and bends of each layer, from above.
    layers: Vec<Vec<usize>>,
    /// Neighbours one layer to the left and to the right.
    before: Vec<Vec<usize>>,
    after: Vec<Vec<usize>>,
    /// The boxes and bends that each arrow passes.
    paths: Vec<Vec<usize>>,
}

impl Layered {
    fn new(boxes: &[Item], links: &[Link], layer_of: &[usize]) -> Self {
        let depth = layer_of.iter().max().map_or(0, |last| last + 1);
        let mut graph = Self {
            items: boxes.to_vec(),
            layers: vec![Vec::new(); depth],
            before: vec![Vec::new(); boxes.len()],
            after: vec![Vec::new(); boxes.len()],
            paths: Vec::new(),
        };
        for (node, layer) in layer_of.iter().enumerate() {
            graph.layers[*layer].push(node);
        }
        for link in links {
            let mut path = vec![link.from];
            for layer in layer_of[link.from] + 1..layer_of[link.to] {
                let bend = graph.items.len();
                graph.items.push(Item { width: 0.0, height: BEND, lane: boxes[link.from].lane });
                graph.before.push(Vec::new());
                graph.after.push(Vec::new());
                graph.layers[layer].push(bend);
                path.push(bend);
            }
            path.push(link.to);
            for pair in path.windows(2) {
                graph.after[pair[0]].push(pair[1]);
                graph.before[pair[1]].push(pair[0]);
            }
            graph.paths.push(path);
        }
        graph
    }

    /// Orders every layer so that few arrows cross; lanes stay apart.
    fn order(&mut self) {
        for layer in &mut self.layers {
            layer.sort_by_key(|node| (self.items[*node].lane, *node));
        }
        let mut best = (self.crossings(), self.layers.clone());
        for sweep in 0..SWEEPS {
            let depth = self.layers.len();
            let forward = sweep % 2 == 0;
            for step in 1..depth {
                let at = if forward { step } else { depth - 1 - step };
                let fixed = if forward { at - 1 } else { at + 1 };
                let places = positions(&self.layers[fixed], self.items.len());
                let towards = if forward { &self.before } else { &self.after };
                let mut keyed: Vec<(usize, f64, usize)> = self.layers[at]
                    .iter()
                    .enumerate()
                    .map(|(place, node)| {
                        let mean = mean(towards[*node].iter().filter_map(|other| places[*other]));
                        (self.items[*node].lane, mean.unwrap_or(place as f64), *node)
                    })
                    .collect();
                keyed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
                self.layers[at] = keyed.into_iter().map(|(_, _, node)| node).collect();
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.layers.clone());
            }
        }
        self.layers = best.1;
    }

    fn crossings(&self) -> usize {
        let mut crossings = 0;
        for pair in self.layers.windows(2) {
            let places = positions(&pair[1], self.items.len());
            let ends: Vec<Vec<f64>> = pair[0]
                .iter()
                .map(|node| self.after[*node].iter().filter_map(|next| places[*next]).collect())
                .collect();
            for (above, upper) in ends.iter().enumerate() {
                for lower in &ends[above + 1..] {
                    crossings +=
                        upper.iter().flat_map(|a| lower.iter().map(move |b| a > b)).filter(|c| *c).count();
                }
            }
        }
        crossings
    }

    /// The middle of every box and bend, and the lanes.
    fn rows(&self, lane_head: f64, lane_gap: f64) -> (Vec<f64>, Vec<(f64, f64)>) {
        let mut middles = vec![0.0; self.items.len()];
        let count = self.items.iter().map(|item| item.lane + 1).max().unwrap_or(0);
        let mut lanes = Vec::new();
        let mut top = 0.0;
        for lane in 0..count {
            let own = |node: &&usize| self.items[**node].lane == lane;
            let layers: Vec<Vec<usize>> =
                self.layers.iter().map(|layer| layer.iter().filter(own).copied().collect()).collect();
            for layer in &layers {
                self.settle(layer, &mut middles, |_| None);
            }
            for sweep in 0..PLACINGS {
                let same = |other: &&usize| self.items[**other].lane == lane;
                for step in 0..layers.len() {
                    let at = if sweep % 2 == 0 { step } else { layers.len() - 1 - step };
                    let wanted: Vec<Option<f64>> = layers[at]
                        .iter()
                        .map(|node| {
                            let sides: &[&Vec<usize>] = match sweep {
                                last if last + 1 == PLACINGS => &[&self.before[*node]],
                                late if late >= BOTH => &[&self.before[*node], &self.after[*node]],
                                even if even % 2 == 0 => &[&self.before[*node]],
                                _ => &[&self.after[*node]],
                            };
                            let near = sides.iter().flat_map(|side| side.iter().filter(same));
                            mean(near.map(|other| middles[*other]))
                        })
                        .collect();
                    self.settle(&layers[at], &mut middles, |place| wanted[place]);
                }
            }
            let nodes = || layers.iter().flatten().copied();
            let half = |node: usize| self.items[node].height / 2.0;
            let upper = nodes().map(|node| middles[node] - half(node)).fold(f64::INFINITY, f64::min);
            let lower = nodes().map(|node| middles[node] + half(node)).fold(f64::NEG_INFINITY, f64::max);
            let height = if upper.is_finite() { lower - upper } else { 0.0 };
            for node in nodes() {
                middles[node] += top + lane_head - upper;
            }
            let foot = if lane_head > 0.0 { ROW_GAP / 2.0 } else { 0.0 };
            lanes.push((top, lane_head + height + foot));
            top += lane_head + height + foot + lane_gap;
        }
        (middles, lanes)
    }

    /// Gives the boxes of a layer the positions nearest to the wanted ones that keep their order and distance: the
    /// least-squares solution, by pooling neighbours that would overlap.
    fn settle(&self, layer: &[usize], middles: &mut [f64], wanted: impl Fn(usize) -> Option<f64>) {
        let mut offset = 0.0;
        let mut offsets = Vec::with_capacity(layer.len());
        // Pools of neighbours: sum of their wanted positions, and their number.
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for (place, node) in layer.iter().enumerate() {
            if place > 0 {
                let gap = (self.items[layer[place - 1]].height + self.items[*node].height) / 2.0 + ROW_GAP;
                offset += gap;
            }
            offsets.push(offset);
            pools.push((wanted(place).unwrap_or(middles[*node]) - offset, 1));
            while let [.., (left, few), (right, more)] = pools[..] {
                if left / few as f64 <= right / more as f64 {
                    break;
                }
                pools.truncate(pools.len() - 2);
                pools.push((left + right, few + more));
            }
        }
        let bases = pools.iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / *count as f64, *count));
        for ((node, offset), base) in layer.iter().zip(offsets).zip(bases) {
            middles[*node] = base + offset;
        }
    }

    /// Left edge and width of every layer, and the width of all.
    fn columns(&self, links: &[Link], layer_of: &[usize]) -> (Vec<(f64, f64)>, f64) {
        let mut columns = Vec::new();
        let mut x = 0.0;
        for (layer, nodes) in self.layers.iter().enumerate() {
            let width = nodes.iter().map(|node| self.items[*node].width).fold(0.0, f64::max);
            columns.push((x, width));
            // The label of an arrow is before the box it enters.
            let labels = links.iter().filter(|link| layer_of[link.to] == layer + 1).map(|link| link.label);
            let label = labels.fold(0.0, f64::max);
            x += width + LAYER_GAP + if label > 0.0 { label + 8.0 } else { 0.0 };
        }
        (columns.clone(), columns.last().map_or(0.0, |(x, width)| x + width))
    }

    fn routes(
        &self,
        links: &[Link],
        boxes: &[Rectangle],
        middles: &[f64],
        columns: &[(f64, f64)],
    ) -> Vec<Vec<Point>> {
        let mut layer_at = vec![0; self.items.len()];
        for (layer, nodes) in self.layers.iter().enumerate() {
            for node in nodes {
                layer_at[*node] = layer;
            }
        }
        let mut routes = Vec::new();
        for (index, link) in links.iter().enumerate() {
            let path = &self.paths[index];
            let from = boxes[link.from];
            let mut route = vec![(from.x + from.width, middles[link.from])];
            for bend in &path[1..path.len() - 1] {
                let (x, width) = columns[layer_at[*bend]];
                route.extend([(x, middles[*bend]), (x + width, middles[*bend])]);
            }
            route.push((boxes[link.to].x, self.entrance(index, links, boxes, middles)));
            routes.push(route);
        }
        routes
    }

    /// The height at which an arrow enters its box: arrows side by side, in the order of their origins.
    fn entrance(&self, index: usize, links: &[Link], boxes: &[Rectangle], middles: &[f64]) -> f64 {
        let to = links[index].to;
        let last_before =
            |link: usize| self.paths[link].iter().rev().nth(1).map_or(0.0, |node| middles[*node]);
        let mut entering: Vec<usize> = (0..links.len()).filter(|link| links[*link].to == to).collect();
        entering.sort_by(|a, b| last_before(*a).total_cmp(&last_before(*b)).then(a.cmp(b)));
        let place = entering.iter().position(|link| *link == index).unwrap_or(0);
        let share = (boxes[to].height * 0.6 / entering.len() as f64).min(26.0);
        middles[to] + (place as f64 - (entering.len() - 1) as f64 / 2.0) * share
    }
}

/// The position of every node in a layer.
fn positions(layer: &[usize], count: usize) -> Vec<Option<f64>> {
    let mut places = vec![None; count];
    for (place, node) in layer.iter().enumerate() {
        places[*node] = Some(place as f64);
    }
    places
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn items(count: usize, lanes: usize) -> Vec<Item> {
        (0..count)
            .map(|n| Item { width: 100.0 + n as f64, height: 40.0 + (n % 3) as f64 * 20.0, lane: n % lanes })
            .collect()
    }

    fn link(from: usize, to: usize) -> Link {
        Link { from, to, label: 0.0 }
    }

    #[test]
    fn a_diamond_is_symmetric() {
        let all = vec![Item { width: 100.0, height: 40.0, lane: 0 }; 4];
        let layout = place(&all, &[link(0, 1), link(0, 2), link(1, 3), link(2, 3)], 0.0, 0.0);
        let middle = |n: usize| layout.boxes[n].y + 20.0;
        assert_eq!(middle(0), middle(3));
        assert_eq!(middle(1) + middle(2), 2.0 * middle(0));
        assert_eq!(layout.boxes[1].x, layout.boxes[2].x);
    }

    #[test]
    fn parallel_lines_do_not_cross() {
        // Given in an order that would cross: 0 -> 3, 1 -> 2.
        let layout = place(&items(4, 1), &[link(0, 3), link(1, 2)], 0.0, 0.0);
        let above = |a: usize, b: usize| layout.boxes[a].y < layout.boxes[b].y;
        assert_eq!(above(0, 1), above(3, 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn boxes_never_overlap_and_stay_in_their_lanes(
            count in 1usize..14, lanes in 1usize..4, pairs in prop::collection::vec((0usize..14, 0usize..14), 0..30)
        ) {
            let links: Vec<Link> = pairs
                .into_iter()
                .map(|(a, b)| (a % count, b % count))
                .filter(|(a, b)| a < b)
                .map(|(a, b)| link(a, b))
                .collect();
            let all = items(count, lanes.min(count));
            let layout = place(&all, &links, 20.0, 10.0);
            prop_assert_eq!(&layout, &place(&all, &links, 20.0, 10.0), "always the same");
            for (n, a) in layout.boxes.iter().enumerate() {
                let (top, height) = layout.lanes[all[n].lane];
                prop_assert!(a.y >= top - 1e-6 && a.y + a.height <= top + height + 1e-6, "{a:?} leaves its lane");
                prop_assert!(a.x + a.width <= layout.width + 1e-6);
                for b in &layout.boxes[n + 1..] {
                    let apart = a.x + a.width <= b.x || b.x + b.width <= a.x
                        || a.y + a.height <= b.y + 1e-6 || b.y + b.height <= a.y + 1e-6;
                    prop_assert!(apart, "{a:?} {b:?}");
                }
            }
            for (link, route) in links.iter().zip(&layout.routes) {
                prop_assert!(layout.boxes[link.from].x < layout.boxes[link.to].x, "arrows go to the right");
                prop_assert!(route.windows(2).all(|pair| pair[0].0 <= pair[1].0 + 1e-6), "{route:?}");
            }
        }
    }
}
