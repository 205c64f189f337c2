//! Four applications as arXiv 2401.13354 (version 1, 24 January 2024, CC BY 4.0) publishes them: calls of one inference by
//! class (its Table 2), local times on two cards (Table 5), and the bandwidth of local runs (Table 4). Which card and batch
//! Table 2 is of is not published.

/// Calls of one inference by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Calls that are posted.
    pub posted: u64,
    /// Calls that are answered from replicated state.
    pub local: u64,
    /// Calls that wait for an answer.
    pub sync: u64,
}

impl Counts {
    /// All calls.
    pub const fn total(self) -> u64 {
        self.posted + self.local + self.sync
    }
}

/// Local time and bandwidth on one card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnCard {
    /// Seconds of one inference, in the largest batch that is published.
    pub local: f64,
    /// Bytes per second of a local run. That of `ResNET` on the V100 does not fit its time and its pictures.
    pub bandwidth: f64,
}

/// One application.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Application {
    /// Name in the publication.
    pub name: &'static str,
    /// Records of one inference in the largest batch that is published.
    pub batch: u32,
    /// Calls with outstanding requests alone: Table 2, left.
    pub outstanding: Counts,
    /// Calls with shadow resources and locality too: Table 2, right.
    pub optimised: Counts,
    /// On the V100.
    pub v100: OnCard,
    /// On the A100.
    pub a100: OnCard,
}

const fn counts(posted: u64, local: u64, sync: u64) -> Counts {
    Counts { posted, local, sync }
}

const fn on(milliseconds: f64, megabytes_per_second: f64) -> OnCard {
    OnCard { local: milliseconds / 1e3, bandwidth: megabytes_per_second * 1e6 }
}

impl Application {
    /// Classification of pictures.
    pub const RESNET: Application = Application {
        name: "ResNET",
        batch: 64,
        outstanding: counts(414, 0, 1_061),
        optimised: counts(534, 937, 4),
        v100: on(5.8, 253.0),
        a100: on(2.7, 279.4),
    };
    /// Stable Diffusion, a generator of pictures.
    pub const SD: Application = Application {
        name: "SD",
        batch: 1,
        outstanding: counts(149_053, 0, 607_831),
        optimised: counts(169_193, 583_968, 3_723),
        v100: on(8_118.3, 0.8),
        a100: on(5_093.1, 1.2),
    };
    /// A language model that reads.
    pub const BERT: Application = Application {
        name: "BERT",
        batch: 64,
        outstanding: counts(467, 0, 2_436),
        optimised: counts(467, 2_407, 29),
        v100: on(50.5, 0.6),
        a100: on(34.6, 0.9),
    };
    /// A language model that writes.
    pub const GPT2: Application = Application {
        name: "GPT-2",
        batch: 512,
        outstanding: counts(6_104, 0, 38_145),
        optimised: counts(6_104, 37_634, 511),
        v100: on(596.9, 0.25),
        a100: on(385.4, 0.4),
    };
    /// All of them, in the order of the publication.
    pub const ALL: [Application; 4] = [Self::RESNET, Self::SD, Self::BERT, Self::GPT2];
}

impl OnCard {
    /// Bytes of one inference.
    pub fn bytes(&self) -> f64 {
        self.local * self.bandwidth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_a_table_have_one_sum() {
        let totals = [1_475, 756_884, 2_903, 44_249];
        for (application, total) in Application::ALL.iter().zip(totals) {
            assert_eq!(application.outstanding.total(), total, "{}", application.name);
            assert_eq!(application.optimised.total(), total, "{}", application.name);
        }
    }

    #[test]
    fn a_batch_of_pictures_explains_the_bytes() {
        let pictures = 64.0 * 3.0 * 32.0 * 32.0 * 4.0;
        assert!((Application::RESNET.a100.bytes() / pictures - 1.0).abs() < 0.05);
    }
}
