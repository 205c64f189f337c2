//! Tokens to replicas.

/// The reason why tokens cannot be dispatched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// The tables differ in their sizes.
    #[error("{what}: {found} where {expected} are expected")]
    Sizes {
        /// The things that were counted.
        what: &'static str,
        /// The number found.
        found: usize,
        /// The number expected.
        expected: usize,
    },
    /// An expert has tokens and no replica.
    #[error("expert {expert} has {tokens} tokens and no replica")]
    NoReplica {
        /// The expert, from 0 on.
        expert: usize,
        /// Its tokens.
        tokens: u64,
    },
    /// The tokens of a rank are not those that were counted.
    #[error("rank {rank} has {found} tokens for expert {expert}, and {counted} were counted")]
    Tokens {
        /// The rank, from 0 on.
        rank: usize,
        /// The expert.
        expert: usize,
        /// The tokens that it has.
        found: u64,
        /// The tokens of the table.
        counted: u64,
    },
}

/// Which rank computes the tokens of which. Each rank knows the tokens of all ranks by expert (an all-gather of counts), computes the same
/// dispatch, and so knows what it sends and receives in an all-to-all without padding.
///
/// The rules are those of Lazarus' algorithm 2 (Wu et al. 2024): all replicas of an expert get equally many tokens, a rank keeps its own
/// as far as its replicas allow, and the rest goes to the other ranks in proportion to what they still take. The printed text divides
/// by a sum that leaves out the *target*, which loses tokens; the sum here is over all ranks. Whole tokens come from one rounding that is
/// the same on all ranks: replicas of an expert differ by one token at most.
///
/// ```
/// use tidemill_replicas::Dispatch;
/// // One expert, with a replica on each of two ranks; rank 0 has eight tokens for it, and rank 1 has two.
/// let dispatch = Dispatch::new(&[vec![8, 2]], &[vec![1, 1]])?;
/// assert_eq!(dispatch.tokens(0, 0, 1), 3);
/// assert_eq!((dispatch.received(0), dispatch.received(1)), (5, 5));
/// # Ok::<(), tidemill_replicas::DispatchError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dispatch {
    ranks: usize,
    copies: Vec<Vec<u32>>,
    /// By expert, sender and receiver.
    tokens: Vec<Vec<Vec<u64>>>,
}

impl Dispatch {
    /// Computes the dispatch of `tokens` by expert and rank, to `copies` by expert and rank
    /// ([`Placement::copies`](crate::Placement::copies)).
    ///
    /// # Errors
    /// Both tables have the same sizes, and each expert with tokens has a replica.
    pub fn new(tokens: &[Vec<u64>], copies: &[Vec<u32>]) -> Result<Self, DispatchError> {
        let ranks = tokens.first().map_or(0, Vec::len);
        let sizes = |what, found, expected| match found == expected {
            true => Ok(()),
            false => Err(DispatchError::Sizes { what, found, expected }),
        };
        sizes("experts with replicas", copies.len(), tokens.len())?;
        // Of those that could get one more token, the rank with the fewest such tokens takes it, over all experts.
        let mut extras = vec![0u64; ranks];
        let mut dispatched = Vec::with_capacity(tokens.len());
        for (expert, (tokens, copies)) in tokens.iter().zip(copies).enumerate() {
            sizes("ranks with tokens", tokens.len(), ranks)?;
            sizes("ranks with replicas", copies.len(), ranks)?;
            let total: u64 = tokens.iter().sum();
            let replicas: u64 = copies.iter().map(|count| u64::from(*count)).sum();
            if replicas == 0 && total > 0 {
                return Err(DispatchError::NoReplica { expert, tokens: total });
            }
            let capacity = capacities(tokens, copies, total, replicas, &mut extras);
            dispatched.push(flows(tokens, &capacity));
        }
        Ok(Self { ranks, copies: copies.to_vec(), tokens: dispatched })
    }

    /// Returns the tokens for an expert that a rank sends to another one, or keeps.
    pub fn tokens(&self, expert: usize, from: usize, to: usize) -> u64 {
        self.tokens[expert][from][to]
    }

    /// Returns the tokens for all experts that a rank sends to another one: the sizes of an all-to-all.
    pub fn sent(&self, from: usize, to: usize) -> u64 {
        self.tokens.iter().map(|expert| expert[from][to]).sum()
    }

    /// Returns the tokens that a rank computes, its own included.
    pub fn received(&self, rank: usize) -> u64 {
        (0..self.ranks).map(|from| self.sent(from, rank)).sum()
    }

    /// Returns the tokens of each replica of an expert on a rank: they differ by one at most, also from those on other ranks.
    pub fn by_replica(&self, expert: usize, rank: usize) -> Vec<u64> {
        let copies = u64::from(self.copies[expert][rank]);
        let received: u64 = self.tokens[expert].iter().map(|from| from[rank]).sum();
        (0..copies).map(|replica| received / copies + u64::from(replica < received % copies)).collect()
    }

    /// Returns the order in which a rank sends its tokens, whose experts are given: by receiver, then by expert, then as they came. The
    /// tokens for receiver 0 are the first [`sent(rank, 0)`](Self::sent), and so on.
    ///
    /// # Errors
    /// The tokens are those that were counted.
    pub fn order(&self, rank: usize, experts: &[usize]) -> Result<Vec<usize>, DispatchError> {
        let mut of_expert: Vec<Vec<usize>> = vec![Vec::new(); self.tokens.len()];
        for (token, expert) in experts.iter().enumerate() {
            let known = of_expert.len();
            let error = DispatchError::Sizes { what: "experts", found: expert + 1, expected: known };
            of_expert.get_mut(*expert).ok_or(error)?.push(token);
        }
        for (expert, tokens) in of_expert.iter().enumerate() {
            let (found, counted) = (tokens.len() as u64, self.tokens[expert][rank].iter().sum());
            if found != counted {
                return Err(DispatchError::Tokens { rank, expert, found, counted });
            }
        }
        let mut waiting: Vec<_> = of_expert.into_iter().map(Vec::into_iter).collect();
        let mut order = Vec::with_capacity(experts.len());
        for receiver in 0..self.ranks {
            for (expert, tokens) in waiting.iter_mut().enumerate() {
                let count = self.tokens[expert][rank][receiver];
                order.extend(tokens.by_ref().take(usize::try_from(count).unwrap_or(usize::MAX)));
            }
        }
        Ok(order)
    }
}

/// The tokens of an expert that each rank computes: the same number for each replica, and one more for some.
fn capacities(tokens: &[u64], copies: &[u32], total: u64, replicas: u64, extras: &mut [u64]) -> Vec<u64> {
    let each = total.checked_div(replicas).unwrap_or(0);
    let mut capacity: Vec<u64> = copies.iter().map(|count| each * u64::from(*count)).collect();
    let mut left: Vec<u32> = copies.to_vec();
    for _ in 0..total.checked_rem(replicas).unwrap_or(0) {
        // Tokens that stay where they are cost nothing to send.
        let key = |rank: &usize| (tokens[*rank] <= capacity[*rank], extras[*rank], *rank);
        if let Some(rank) = (0..copies.len()).filter(|rank| left[*rank] > 0).min_by_key(key) {
            capacity[rank] += 1;
            left[rank] -= 1;
            extras[rank] += 1;
        }
    }
    capacity
}

/// The tokens of an expert by sender and receiver: rows add up to `tokens`, columns to `capacity`, and own tokens come first.
fn flows(tokens: &[u64], capacity: &[u64]) -> Vec<Vec<u64>> {
    let ranks = tokens.len();
    let own: Vec<u64> = tokens.iter().zip(capacity).map(|(one, other)| *one.min(other)).collect();
    let mut room: Vec<u64> = capacity.iter().zip(&own).map(|(capacity, own)| capacity - own).collect();
    let mut flows = vec![vec![0; ranks]; ranks];
    for (rank, row) in flows.iter_mut().enumerate() {
        row[rank] = own[rank];
        let surplus = tokens[rank] - own[rank];
        let rooms: u64 = room.iter().sum();
        if surplus == 0 {
            continue;
        }
        let mut shares: Vec<(u128, usize)> = Vec::with_capacity(ranks);
        let mut sent = 0;
        for receiver in 0..ranks {
            let product = u128::from(surplus) * u128::from(room[receiver]);
            let share = (product / u128::from(rooms)) as u64; // at most the surplus
            row[receiver] += share;
            sent += share;
            shares.push((product % u128::from(rooms), receiver));
        }
        // The largest fractions are rounded up; of equal ones, those of the next ranks, so that no receiver is always the first.
        shares.sort_by_key(|(fraction, receiver)| {
            (std::cmp::Reverse(*fraction), (receiver + ranks - rank) % ranks)
        });
        for (_, receiver) in shares.into_iter().take(usize::try_from(surplus - sent).unwrap_or(ranks)) {
            row[receiver] += 1;
        }
        for (receiver, room) in room.iter_mut().enumerate().filter(|(receiver, _)| *receiver != rank) {
            *room -= row[receiver];
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_are_sent_by_receiver_and_expert() {
        let dispatch = Dispatch::new(&[vec![4, 0], vec![1, 3]], &[vec![1, 1], vec![1, 0]]).unwrap();
        assert_eq!((dispatch.sent(0, 0), dispatch.sent(0, 1), dispatch.sent(1, 0)), (3, 2, 3));
        assert_eq!(dispatch.order(0, &[0, 1, 0, 0, 0]).unwrap(), [0, 2, 1, 3, 4]);
        let wrong = DispatchError::Tokens { rank: 0, expert: 0, found: 1, counted: 4 };
        assert_eq!(dispatch.order(0, &[0]), Err(wrong));
        let wrong = DispatchError::Sizes { what: "experts", found: 8, expected: 2 };
        assert_eq!(dispatch.order(0, &[7]), Err(wrong));
    }

    #[test]
    fn tokens_without_a_replica_are_an_error() {
        let refused = Dispatch::new(&[vec![0, 2]], &[vec![0, 0]]);
        assert_eq!(refused, Err(DispatchError::NoReplica { expert: 0, tokens: 2 }));
        let refused = Dispatch::new(&[vec![0, 2]], &[vec![1]]);
        assert!(matches!(refused, Err(DispatchError::Sizes { found: 1, expected: 2, .. })));
    }

    /// The extra tokens of many experts do not all go to the first ranks.
    #[test]
    fn extra_tokens_are_spread_over_ranks() {
        let tokens = vec![vec![0, 0, 0, 1]; 16];
        let copies = vec![vec![1, 1, 1, 0]; 16];
        let dispatch = Dispatch::new(&tokens, &copies).unwrap();
        let received: Vec<u64> = (0..4).map(|rank| dispatch.received(rank)).collect();
        assert_eq!(received, [6, 5, 5, 0]);
    }

    fn tables() -> impl Strategy<Value = (Vec<Vec<u64>>, Vec<Vec<u32>>)> {
        (1usize..7, 1usize..6).prop_flat_map(|(experts, ranks)| {
            let tokens = prop_oneof![0u64..5, 0u64..1_000, 0u64..1 << 40];
            let tokens = proptest::collection::vec(proptest::collection::vec(tokens, ranks), experts);
            let copies = proptest::collection::vec(proptest::collection::vec(0u32..4, ranks), experts);
            (tokens, copies)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        /// LZ-4: each token goes somewhere once, replicas differ by one at most, and a rank with room keeps its own tokens.
        #[test]
        fn tokens_are_conserved_and_even((tokens, mut copies) in tables()) {
            for copies in &mut copies {
                if copies.iter().all(|count| *count == 0) {
                    copies[0] = 1;
                }
            }
            let dispatch = Dispatch::new(&tokens, &copies).unwrap();
            let ranks = tokens[0].len();
            for (expert, row) in tokens.iter().enumerate() {
                let mut least = u64::MAX;
                let mut most = 0;
                for (rank, own) in row.iter().enumerate() {
                    let sent: u64 = (0..ranks).map(|to| dispatch.tokens(expert, rank, to)).sum();
                    prop_assert_eq!(sent, *own);
                    let received: u64 = (0..ranks).map(|from| dispatch.tokens(expert, from, rank)).sum();
                    let replicas = dispatch.by_replica(expert, rank);
                    prop_assert_eq!(replicas.iter().sum::<u64>(), received);
                    for tokens in replicas {
                        least = least.min(tokens);
                        most = most.max(tokens);
                    }
                    prop_assert_eq!(dispatch.tokens(expert, rank, rank), (*own).min(received));
                }
                prop_assert!(most <= least + 1);
            }
        }

        /// Each rank sends exactly its tokens, in an order of its own.
        #[test]
        fn orders_are_permutations(experts in proptest::collection::vec(0usize..4, 0..60), seed in 0u32..9) {
            let mut tokens = vec![vec![0, 3]; 4];
            for expert in &experts {
                tokens[*expert][0] += 1;
            }
            let copies = (0..4).map(|expert| vec![1 + seed % 3, (seed + expert) % 2]).collect::<Vec<_>>();
            let mut order = Dispatch::new(&tokens, &copies).unwrap().order(0, &experts).unwrap();
            order.sort_unstable();
            prop_assert_eq!(order, (0..experts.len()).collect::<Vec<_>>());
        }
    }
}
