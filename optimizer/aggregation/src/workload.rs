//! Jobs shaped like published models, and random arrivals of them.
use crate::service::Job;
use crate::simulation::Arrival;
use std::time::Duration;
use tidemill_random::Random;

/// A model as its aggregation sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// The parameters of its tensors, in millions; biases and other small tensors are left out.
    pub tensors: &'static [f64],
    /// The duration of an iteration, in seconds: an assumption.
    pub iteration: f64,
    /// The part of one server's time that aggregation takes with two workers. AutoPS gives 16 % for VGG19, and says that more than half of
    /// the time is unused for the others; the numbers for these are assumptions.
    pub share: f64,
}

/// AlexNet: short iterations, and a large share of aggregation.
pub const ALEXNET: Shape = Shape {
    name: "AlexNet",
    tensors: &[0.035, 0.307, 0.664, 0.885, 0.590, 37.749, 16.777, 4.096],
    iteration: 0.2,
    share: 0.45,
};

/// VGG19: one tensor has 71 % of all parameters.
pub const VGG19: Shape = Shape {
    name: "VGG19",
    tensors: &[
        0.002, 0.037, 0.074, 0.147, 0.295, 0.590, 0.590, 0.590, 1.180, 2.359, 2.359, 2.359, 2.359, 2.359,
        2.359, 2.359, 102.760, 16.777, 4.096,
    ],
    iteration: 0.6,
    share: 0.16,
};

/// AWD-LM: three recurrent layers and an embedding.
pub const AWD_LM: Shape =
    Shape { name: "AWD-LM", tensors: &[40.0, 9.2, 5.3, 10.6, 10.6, 7.4, 1.8], iteration: 0.5, share: 0.3 };

/// BERT: 24 equal layers of six matrices, and an embedding.
pub const BERT: Shape = Shape {
    name: "BERT",
    tensors: &{
        let mut tensors = [1.049; 145];
        let mut layer = 0;
        while layer < 24 {
            tensors[6 * layer + 4] = 4.194;
            tensors[6 * layer + 5] = 4.194;
            layer += 1;
        }
        tensors[144] = 31.25;
        tensors
    },
    iteration: 0.8,
    share: 0.35,
};

impl Shape {
    /// Returns a job of this shape: the time of a tensor is in proportion to its parameters, and to the workers.
    pub fn job(&self, servers: usize, workers: usize) -> Job {
        let total: f64 = self.tensors.iter().sum();
        let work = self.share * self.iteration * workers as f64 / 2.0;
        let tensors: Vec<f64> = self.tensors.iter().map(|tensor| work * tensor / total).collect();
        // A tensor that would fill an iteration is divided, as parameter servers do.
        let pieces = |work: &f64| (work / (0.5 * self.iteration)).ceil().max(1.0);
        let tensors = tensors
            .iter()
            .flat_map(|work| {
                std::iter::repeat_n(Duration::from_secs_f64(work / pieces(work)), pieces(work) as usize)
            })
            .collect();
        Job { iteration: Duration::from_secs_f64(self.iteration), tensors, spread: servers }
    }
}

/// Returns `count` random jobs: exponential times between arrivals, durations over three powers of ten (most are minutes, some are days),
/// 1 to 8 servers and twice as many workers or fewer. Not a recorded trace.
pub fn arrivals(seed: u64, count: usize, between: Duration) -> Vec<Arrival> {
    let mut random = Random::of_seed(seed);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at -= between.as_secs_f64() * (1.0 - random.unit()).ln();
            let length = 120.0 * 10f64.powf(3.0 * random.unit() * random.unit());
            let shape = [ALEXNET, VGG19, AWD_LM, BERT][random.below(4)];
            let servers = 1 << random.below(4);
            let workers = if servers == 1 { 2 } else { servers };
            let mut job = shape.job(servers, workers);
            // Batches differ, and so do iterations; work keeps its share.
            let scale = random.uniform(0.5, 2.0);
            job.iteration = job.iteration.mul_f64(scale);
            job.tensors.iter_mut().for_each(|work| *work = work.mul_f64(scale));
            job.spread = job.spread.min(job.tensors.len());
            Arrival { at: Duration::from_secs_f64(at), length: Duration::from_secs_f64(length), servers, job }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_the_published_sizes() {
        let millions = |shape: Shape| shape.tensors.iter().sum::<f64>();
        for (shape, megabytes) in [(ALEXNET, 236.0), (VGG19, 548.0), (AWD_LM, 396.0), (BERT, 1278.0)] {
            let found = millions(shape) * 4.0 / 1.048_576;
            assert!((found / megabytes - 1.0).abs() < 0.2, "{} {found}", shape.name);
        }
    }

    #[test]
    fn a_job_has_the_work_of_its_workers() {
        let job = VGG19.job(2, 2);
        let work: Duration = job.tensors.iter().sum();
        assert!((work.as_secs_f64() - 0.16 * 0.6).abs() < 1e-6);
        let wide = ALEXNET.job(4, 8);
        assert!(wide.tensors.iter().all(|work| *work <= wide.iteration / 2));
        assert!(wide.tensors.len() > ALEXNET.tensors.len());
    }
}
