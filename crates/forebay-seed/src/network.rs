//! The network: from an environment to the strength of any group (3.2.2 of the paper).
//!
//! Two hidden layers, fully connected. All numbers lie in one array, by layer:
//!
//! ```text
//! into the first layer    for each input 32 weights, 32 biases      an input that is 0 costs nothing
//! into the second layer   for each node of the first 24 weights, 24 biases
//! out                     for each group 24 weights, 32 biases      only the groups that are asked for
//! ```
//!
//! Nodes give `max(x, x / 16)`: one that is below 0 still learns. The loops go over arrays of fixed length, so that the compiler
//! makes vectors of them; there is no other arithmetic here and no library behind it.

use crate::environment::Environment;
use crate::random::Random;
use crate::request::{GROUPS, Group};

/// Inputs: one count for each group.
pub const INPUTS: usize = GROUPS;
/// Nodes of the first hidden layer.
pub const FIRST: usize = 32;
/// Nodes of the second hidden layer.
pub const SECOND: usize = 24;

pub(crate) const FIRST_BIASES: usize = INPUTS * FIRST;
pub(crate) const SECOND_WEIGHTS: usize = FIRST_BIASES + FIRST;
pub(crate) const SECOND_BIASES: usize = SECOND_WEIGHTS + FIRST * SECOND;
pub(crate) const OUT_WEIGHTS: usize = SECOND_BIASES + SECOND;
pub(crate) const OUT_BIASES: usize = OUT_WEIGHTS + GROUPS * SECOND;
/// Weights and biases of all layers.
pub const PARAMETERS: usize = OUT_BIASES + GROUPS;
const _: () = assert!(PARAMETERS < 3_000, "the paper's size of a network");

/// What a node gives for a negative input, as a part of it.
pub(crate) const LEAK: f32 = 1.0 / 16.0;
/// No weight of a network is larger than this.
pub(crate) const WEIGHT_MAX: f32 = 1_000.0;
/// Lanes of the last layer's sums.
const LANES: usize = 8;

/// Weights and biases.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    parameters: Box<[f32; PARAMETERS]>,
}

/// What the second hidden layer gives for an environment: enough to ask for any group.
#[derive(Clone, Copy, Debug)]
pub struct Hidden(pub(crate) [f32; SECOND]);

impl Network {
    /// A network that has learnt nothing. Its weights are drawn (He et al. 2015), those of the last layer small, so that every
    /// strength begins near a half.
    pub fn untrained(random: &mut Random) -> Self {
        let mut parameters = Box::new([0.0; PARAMETERS]);
        let mut draw = |range: std::ops::Range<usize>, deviation: f64| {
            for parameter in &mut parameters[range] {
                *parameter = (random.normal() * deviation) as f32;
            }
        };
        draw(0..FIRST_BIASES, (2.0 / INPUTS as f64).sqrt());
        draw(SECOND_WEIGHTS..SECOND_BIASES, (2.0 / FIRST as f64).sqrt());
        draw(OUT_WEIGHTS..OUT_BIASES, 0.1 / (SECOND as f64).sqrt());
        Network { parameters }
    }

    /// The numbers, in the order of the layers.
    pub(crate) fn parameters(&self) -> &[f32; PARAMETERS] {
        &self.parameters
    }

    pub(crate) fn parameters_mut(&mut self) -> &mut [f32; PARAMETERS] {
        &mut self.parameters
    }

    /// Both hidden layers.
    pub fn hidden(&self, environment: &Environment) -> Hidden {
        let first = self.first(&environment.inputs());
        Hidden(self.second(&first))
    }

    pub(crate) fn first(&self, inputs: &[f32; INPUTS]) -> [f32; FIRST] {
        let mut sums = *self.array::<FIRST>(FIRST_BIASES);
        for (i, input) in inputs.iter().enumerate() {
            if *input != 0.0 {
                add_scaled(&mut sums, self.array(i * FIRST), *input);
            }
        }
        sums.map(activated)
    }

    pub(crate) fn second(&self, first: &[f32; FIRST]) -> [f32; SECOND] {
        let mut sums = *self.array::<SECOND>(SECOND_BIASES);
        for (i, node) in first.iter().enumerate() {
            add_scaled(&mut sums, self.array(SECOND_WEIGHTS + i * SECOND), *node);
        }
        sums.map(activated)
    }

    /// What the last layer sums up for a group; the strength is [`sigmoid`] of it.
    pub(crate) fn raw(&self, hidden: &Hidden, group: Group) -> f32 {
        let weights = self.array::<SECOND>(OUT_WEIGHTS + group.index() * SECOND);
        let mut lanes = [0.0; LANES];
        for start in (0..SECOND).step_by(LANES) {
            for lane in 0..LANES {
                lanes[lane] += weights[start + lane] * hidden.0[start + lane];
            }
        }
        lanes.iter().sum::<f32>() + self.parameters[OUT_BIASES + group.index()]
    }

    /// The strength that a request of that group will have: lower bound over latency, in (0, 1).
    pub fn strength(&self, hidden: &Hidden, group: Group) -> f32 {
        sigmoid(self.raw(hidden, group))
    }

    fn array<const N: usize>(&self, start: usize) -> &[f32; N] {
        self.parameters[start..]
            .first_chunk()
            .expect("every layer lies within the array")
    }
}

#[inline]
fn add_scaled<const N: usize>(sums: &mut [f32; N], weights: &[f32; N], by: f32) {
    for (sum, weight) in sums.iter_mut().zip(weights) {
        *sum += weight * by;
    }
}

#[inline]
fn activated(sum: f32) -> f32 {
    sum.max(sum * LEAK)
}

/// Between 0 and 1, both left out: sums beyond ±15 are taken for these.
pub(crate) fn sigmoid(raw: f32) -> f32 {
    1.0 / (1.0 + (-raw.clamp(-15.0, 15.0)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Kind, Mode, Request};
    use proptest::prelude::*;

    #[test]
    fn it_is_as_small_as_the_papers() {
        assert_eq!(PARAMETERS, 2_648);
    }

    #[test]
    fn layers_add_up_as_by_hand() {
        let mut network = Network::untrained(&mut Random::new(3));
        let parameters = network.parameters_mut();
        parameters.fill(0.0);
        let request = Request {
            kind: Kind::Read,
            bytes: 4096,
        };
        let group = request.group(Mode::Local);
        // One path through the layers: 1 * 2 + 1 = 3, 3 * -2 = -6 and leaks, then 4 times and 0.5 more.
        parameters[group.index() * FIRST + 5] = 2.0;
        parameters[FIRST_BIASES + 5] = 1.0;
        parameters[SECOND_WEIGHTS + 5 * SECOND + 7] = -2.0;
        parameters[OUT_WEIGHTS + group.index() * SECOND + 7] = 4.0;
        parameters[OUT_BIASES + group.index()] = 0.5;
        let mut environment = Environment::default();
        let record = crate::Record {
            request,
            mode: Mode::Local,
            latency_ns: 1,
        };
        (0..16).for_each(|_| environment.add(record.to_word()));
        let hidden = network.hidden(&environment);
        assert_eq!(network.raw(&hidden, group), -6.0 * LEAK * 4.0 + 0.5);
    }

    proptest! {
        #[test]
        fn a_strength_is_between_0_and_1(
            words in proptest::collection::vec(any::<u64>(), 0..300), seed: u64, scale in 0.0_f32..300.0
        ) {
            let mut network = Network::untrained(&mut Random::new(seed));
            network.parameters_mut().iter_mut().for_each(|p| *p = (*p * scale).clamp(-WEIGHT_MAX, WEIGHT_MAX));
            let mut environment = Environment::default();
            words.iter().for_each(|word| environment.add(*word));
            let hidden = network.hidden(&environment);
            for kind in Kind::BOTH {
                for mode in Mode::BOTH {
                    let strength = network.strength(&hidden, Request { kind, bytes: 1 << 20 }.group(mode));
                    prop_assert!(strength > 0.0 && strength < 1.0, "{strength}");
                }
            }
        }
    }
}
