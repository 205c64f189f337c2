//! Invariants for any load: all together stay within the cap, every group has a minimum, and a steady load reaches a steady
//! limit.
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_elastic::allocator::{Allocator, Caps, Change, Observation, Order};
use tidemill_elastic::cgroup::LEAST_QUOTA;
use tidemill_elastic::rules::{CpuRules, MemoryRules, Rule};

const PERIOD: u64 = 100_000;
const MEBIBYTE: u64 = 1 << 20;

/// A simulated kernel that enforces the last written limits.
struct Machine {
    allocator: Allocator,
    quotas: BTreeMap<String, u64>,
    memory: BTreeMap<String, u64>,
}

impl Machine {
    fn new(rule: Rule, caps: Caps, members: usize) -> Self {
        let rules = CpuRules { rule, ..CpuRules::default() };
        let mut machine = Self {
            allocator: Allocator::new(caps, PERIOD, rules, MemoryRules::default()),
            quotas: BTreeMap::new(),
            memory: BTreeMap::new(),
        };
        let newcomers: Vec<(String, u64)> =
            (0..members).map(|index| (format!("c{index}"), 10 * MEBIBYTE)).collect();
        let orders = machine.allocator.join(&newcomers, &BTreeMap::new()).unwrap();
        machine.write(orders);
        machine
    }

    /// Writes limits one after the other, and checks the sum each time.
    fn write(&mut self, orders: Vec<Order>) {
        let mut orders = orders;
        orders.sort_by_key(|order| !order.is_less());
        for order in orders {
            match order.what {
                Change::Quota(quota) => self.quotas.insert(order.member, quota),
                Change::Memory(bytes) => self.memory.insert(order.member, bytes),
            };
            let caps = self.allocator.caps();
            assert!(self.quotas.values().sum::<u64>() <= caps.quota, "{:?}", self.quotas);
            assert!(self.memory.values().sum::<u64>() <= caps.memory, "{:?}", self.memory);
        }
        for (name, quota) in &self.quotas {
            assert_eq!(self.allocator.limits(name).unwrap(), (*quota, self.memory[name]), "{name}");
        }
    }

    /// A period with these demands, microseconds.
    fn period(&mut self, wanted: &[u64]) {
        let observed = wanted.iter().enumerate().map(|(index, wanted)| {
            let name = format!("c{index}");
            let quota = self.quotas[&name];
            let throttled = if *wanted > quota { 1.0 } else { 0.0 };
            (name, Observation { used: (*wanted).min(quota), throttled })
        });
        let observed = observed.collect();
        let orders = self.allocator.step(&observed);
        self.write(orders);
    }

    fn quota(&self, index: usize) -> u64 {
        self.quotas[&format!("c{index}")]
    }
}

fn rules() -> impl Strategy<Value = Rule> {
    prop_oneof![Just(Rule::Slices), Just(Rule::Printed)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn quotas_never_exceed_the_cap_and_nobody_is_left_without(
        rule in rules(),
        cap in 20_000u64..800_000,
        trace in (1usize..9).prop_flat_map(|members| {
            prop::collection::vec(prop::collection::vec(0u64..400_000, members), 1..80)
        }),
    ) {
        let members = trace[0].len();
        let mut machine = Machine::new(rule, Caps { quota: cap, memory: 4096 * MEBIBYTE }, members);
        let least = (PERIOD / 10).min(cap / members as u64).max(LEAST_QUOTA);
        for wanted in &trace {
            machine.period(wanted);
            for index in 0..members {
                prop_assert!(machine.quota(index) >= least, "{} < {least}", machine.quota(index));
            }
        }
    }

    #[test]
    fn a_steady_load_ends_with_a_steady_quota_just_above_it(
        rule in rules(),
        wanted in prop::collection::vec(2_000u64..60_000, 1..6),
    ) {
        // Enough for all, including the unused part of each.
        let cap = wanted.iter().sum::<u64>() * 2 + 100_000;
        let mut machine = Machine::new(rule, Caps { quota: cap, memory: 4096 * MEBIBYTE }, wanted.len());
        (0..200).for_each(|_| machine.period(&wanted));
        let before: Vec<u64> = (0..wanted.len()).map(|index| machine.quota(index)).collect();
        for _ in 0..20 {
            machine.period(&wanted);
        }
        for (index, wanted) in wanted.iter().enumerate() {
            let quota = machine.quota(index);
            prop_assert_eq!(quota, before[index], "it does not go up and down");
            prop_assert!(quota >= *wanted);
            prop_assert!(quota <= (*wanted * 3 / 2).max(PERIOD / 10), "{} for {}", quota, wanted);
        }
    }

    #[test]
    fn one_that_starves_gets_its_even_share_from_those_who_have_more(
        rule in rules(),
        others in 1usize..6,
        cap in 60_000u64..400_000,
    ) {
        let mut machine = Machine::new(rule, Caps { quota: cap, memory: 4096 * MEBIBYTE }, others + 1);
        let fair = cap / (others as u64 + 1);
        // All others want everything while the first sleeps, then it wakes.
        let greedy = |first: u64| std::iter::once(first).chain(std::iter::repeat_n(1_000_000, others)).collect::<Vec<_>>();
        (0..40).for_each(|_| machine.period(&greedy(0)));
        prop_assert!(machine.quota(0) <= fair);
        (0..10).for_each(|_| machine.period(&greedy(1_000_000)));
        prop_assert!(machine.quota(0) + 10 >= fair * 9 / 10, "{} of {fair}", machine.quota(0));
    }

    #[test]
    fn memory_never_exceeds_the_cap_and_is_above_what_is_used(
        cap in 600u64..2000,
        trace in (1usize..6).prop_flat_map(|members| {
            prop::collection::vec((0..members, 1u64..400, any::<bool>()), 1..60)
                .prop_map(move |steps| (members, steps))
        }),
    ) {
        let (members, steps) = trace;
        let mut machine =
            Machine::new(Rule::Slices, Caps { quota: 400_000, memory: cap * MEBIBYTE }, members);
        let mut used: BTreeMap<String, u64> =
            (0..members).map(|index| (format!("c{index}"), 10 * MEBIBYTE)).collect();
        for (index, mebibytes, is_reclaimed) in steps {
            let name = format!("c{index}");
            let wanted = mebibytes * MEBIBYTE;
            let mut looks = 0;
            // It takes memory up to its limit, and runs out until it has enough or nothing is left.
            loop {
                let has = wanted.min(machine.memory[&name]);
                used.insert(name.clone(), has);
                looks += 1;
                prop_assert!(looks < 100);
                if has == wanted {
                    break;
                }
                let mut others = used.clone();
                others.remove(&name);
                let free = machine.allocator.free_memory();
                let orders = if free < MemoryRules::default().grant { machine.allocator.reclaim(&others) } else { Vec::new() };
                machine.write(orders);
                match machine.allocator.grant(&name, has) {
                    Some(order) => machine.write(vec![order]),
                    None => break,
                }
            }
            if is_reclaimed {
                let orders = machine.allocator.reclaim(&used);
                machine.write(orders);
                for (name, used) in &used {
                    prop_assert!(machine.memory[name] <= used + MemoryRules::default().margin);
                }
            }
            for (name, used) in &used {
                prop_assert!(machine.memory[name] >= *used, "{name}");
            }
        }
    }

    #[test]
    fn those_who_come_later_get_an_even_share_and_those_who_leave_give_theirs(
        rule in rules(),
        first in 1usize..5,
        later in 1usize..5,
        cap in 50_000u64..400_000,
    ) {
        let mut machine = Machine::new(rule, Caps { quota: cap, memory: 4096 * MEBIBYTE }, first);
        (0..10).for_each(|_| machine.period(&vec![1_000_000; first]));
        let newcomers: Vec<(String, u64)> =
            (first..first + later).map(|index| (format!("c{index}"), MEBIBYTE)).collect();
        let used = (0..first).map(|index| (format!("c{index}"), 10 * MEBIBYTE)).collect();
        let orders = machine.allocator.join(&newcomers, &used).unwrap();
        machine.write(orders);
        let fair = cap / (first + later) as u64;
        for index in first..first + later {
            prop_assert_eq!(machine.quota(index), fair);
        }
        let before = machine.allocator.free_quota();
        machine.allocator.leave("c0");
        prop_assert_eq!(machine.allocator.free_quota(), before + machine.quota(0));
    }
}
