//! Losses of workers: as numbers by group, and as sets of single workers.
use super::space::Group;

/// All losses of exactly this number of workers by group, or of all workers where there are fewer. Workers of a group are alike, so
/// that numbers stand for all sets.
pub(super) fn by_group(groups: &[Group], losses: u32) -> Vec<Vec<u32>> {
    let all: u32 = groups.iter().map(|group| group.most).sum();
    let mut found = Vec::new();
    extend(groups, losses.min(all), &mut Vec::new(), &mut found);
    found
}

fn extend(groups: &[Group], left: u32, begun: &mut Vec<u32>, found: &mut Vec<Vec<u32>>) {
    let Some(group) = groups.get(begun.len()) else {
        if left == 0 {
            found.push(begun.clone());
        }
        return;
    };
    for lost in 0..=group.most.min(left) {
        begun.push(lost);
        extend(groups, left - lost, begun, found);
        begun.pop();
    }
}

/// All sets of 1 to this number of workers, smaller sets first.
pub(crate) fn sets(workers: usize, losses: u32) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let mut last: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..losses {
        let longer = last.iter().flat_map(|set| {
            let next = set.last().map_or(0, |last| last + 1);
            (next..workers).map(move |worker| [set.as_slice(), &[worker]].concat())
        });
        last = longer.collect();
        all.extend(last.iter().cloned());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alike_workers_are_one_loss() {
        let group = |most| Group {
            class: 0,
            location: 0,
            wait: None,
            operator: None,
            most,
            price: 1.0,
            memory: None,
        };
        assert_eq!(by_group(&[group(3), group(1)], 1), [[0, 1], [1, 0]]);
        assert_eq!(by_group(&[group(3), group(1)], 2), [[1, 1], [2, 0]]);
        assert_eq!(by_group(&[group(1)], 3), [[1]]);
        assert_eq!(sets(3, 2), [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![1, 2]]);
    }
}
