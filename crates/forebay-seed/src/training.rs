//! Semi-online training: pairs are collected while requests run, a network learns from them beside, and is published once it
//! is better (3.2.3 of the paper).
//!
//! A [`Pair`] is an environment as it was when a request's mode was chosen, the request's group, and the strength that it then had. One
//! pair in [`HELD_OUT_ONE_IN`] is *held out*: it teaches nothing, and says how well a network predicts what it has not seen. An
//! *epoch* is a pass over as many pairs as there are. After it the error on the held-out pairs decides: if that of the network in
//! training is less than the published network's by [`BETTER`], it is published. In training are the means of the weights over the
//! last steps (Polyak and Juditsky 1992), which do not tremble with each batch.
//!
//! Changed against the paper:
//! - the error is the difference of the strengths' logarithms, and so that of the latencies': one that is off by two is as wrong at a
//!   hundredth of the device's speed as at its whole;
//! - pairs lie in *strata* by their mode and by how much of their environment was remote. Each stratum has room of its own, and all
//!   count as much. Else a moment in which everything went one way would push out all pairs of the other way, and those few that
//!   tell how fast it has become since would not be heard beside thousands.

use crate::bounds::STRENGTH_MIN;
use crate::environment::Environment;
use crate::network::{
    FIRST, FIRST_BIASES, Hidden, INPUTS, LEAK, Network, OUT_BIASES, OUT_WEIGHTS, PARAMETERS,
    SECOND, SECOND_BIASES, SECOND_WEIGHTS, WEIGHT_MAX, sigmoid,
};
use crate::random::Random;
use crate::request::Group;

/// One pair in so many is held out.
pub const HELD_OUT_ONE_IN: u64 = 5;
/// By what part the error must have fallen for a network to be published.
pub const BETTER: f32 = 0.02;
/// Strata of each mode, by the share of the environment that was remote.
const SHARES: usize = 4;
const STRATA: usize = 2 * SHARES;
/// Pairs of a stratum that teach, and of a stratum that are held out.
const ROOM: (usize, usize) = (512, 128);
/// Fewer held-out pairs than this say nothing of their stratum.
const HELD_OUT_MIN: usize = 8;
/// New pairs before which an epoch is not worth its time.
const NEW_MIN: u64 = 256;
/// Pairs whose gradients are averaged for one step.
const BATCH: usize = 32;
/// Steps of an epoch: each pair of full strata is drawn once, in the mean.
const STEPS: usize = 128;
/// What each step moves the weights' means by.
const MEAN_WEIGHT: f32 = 0.003;
/// Epochs whose errors are remembered.
const HISTORY: usize = 256;
/// Off by more than this, a pair pulls no harder: one request that a scheduler has delayed says little.
const PULL_MAX: f32 = 2.0;

/// One request, for training.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// What others had done last when its mode was chosen.
    pub environment: Environment,
    /// What it was, and the mode that served it.
    pub group: Group,
    /// What [`crate::Bounds::strength`] says of it.
    pub strength: f32,
}

/// What an epoch has brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Mean error of the network in training on held-out pairs: how far the logarithm of a latency is off.
    pub error: f32,
    /// The same of the published network; where there is none, of predicting the lower bounds.
    pub error_published: f32,
    /// The network in training has become the published one.
    pub is_published: bool,
}

/// A ring: the oldest pair is overwritten.
#[derive(Clone, Debug, Default)]
struct Ring {
    pairs: Vec<Pair>,
    next: usize,
}

impl Ring {
    fn push(&mut self, pair: Pair, room: usize) {
        if self.pairs.len() < room {
            self.pairs.push(pair);
        } else {
            self.pairs[self.next] = pair;
            self.next = (self.next + 1) % room;
        }
    }
}

/// Collects pairs and trains. It runs where nobody waits: in the keeper, or a client's background thread.
#[derive(Clone, Debug)]
pub struct Trainer {
    network: Network,
    mean: Network,
    adam: Adam,
    published: Option<Network>,
    teaching: [Ring; STRATA],
    held_out: [Ring; STRATA],
    collected: u64,
    collected_at_epoch: u64,
    history: Vec<Epoch>,
    random: Random,
}

impl Trainer {
    /// A trainer without pairs; the seed decides all that is drawn.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let network = Network::untrained(&mut random);
        Trainer {
            mean: network.clone(),
            network,
            adam: Adam::new(),
            published: None,
            teaching: Default::default(),
            held_out: Default::default(),
            collected: 0,
            collected_at_epoch: 0,
            history: Vec::new(),
            random,
        }
    }

    /// Takes a pair. What is not a strength is no pair.
    pub fn collect(&mut self, pair: Pair) {
        if !(STRENGTH_MIN..=1.0).contains(&pair.strength) {
            return;
        }
        let stratum = stratum_of(&pair);
        if self.random.next_u64().is_multiple_of(HELD_OUT_ONE_IN) {
            self.held_out[stratum].push(pair, ROOM.1);
        } else {
            self.teaching[stratum].push(pair, ROOM.0);
        }
        self.collected += 1;
    }

    /// The network that predicts, once there is one.
    pub fn published(&self) -> Option<&Network> {
        self.published.as_ref()
    }

    /// The last epochs, the oldest first.
    pub fn history(&self) -> &[Epoch] {
        &self.history
    }

    /// Trains on what was collected, and publishes the network if it has become better. Nothing where too few pairs are new.
    pub fn epoch(&mut self) -> Option<Epoch> {
        if self.collected - self.collected_at_epoch < NEW_MIN {
            return None;
        }
        self.collected_at_epoch = self.collected;
        (0..STEPS).for_each(|_| self.step());
        let error = self.error(Some(&self.mean));
        let error_published = self.error(self.published.as_ref());
        let is_published = error < error_published * (1.0 - BETTER);
        if is_published {
            self.published = Some(self.mean.clone());
        }
        let epoch = Epoch {
            error,
            error_published,
            is_published,
        };
        if self.history.len() == HISTORY {
            self.history.remove(0);
        }
        self.history.push(epoch);
        Some(epoch)
    }

    /// One step along the mean gradient of a batch, its pairs drawn from all strata alike.
    fn step(&mut self) {
        let rings = self.teaching.iter().filter(|ring| !ring.pairs.is_empty());
        let rings: Vec<&Ring> = rings.collect();
        let mut gradient = Gradient::new();
        for _ in 0..BATCH {
            let ring = rings[self.random.below(rings.len())];
            let pair = &ring.pairs[self.random.below(ring.pairs.len())];
            gradient.add(&self.network, pair);
        }
        self.adam.step(self.network.parameters_mut(), &gradient.0);
        let weights = self.network.parameters().iter();
        for (mean, weight) in self.mean.parameters_mut().iter_mut().zip(weights) {
            *mean += (weight - *mean) * MEAN_WEIGHT;
        }
    }

    /// Mean error on held-out pairs, all strata alike; of no network, that of the lower bounds.
    fn error(&self, network: Option<&Network>) -> f32 {
        let rings = self.held_out.iter();
        let rings = rings.filter(|ring| ring.pairs.len() >= HELD_OUT_MIN);
        let (sum, strata) = rings.fold((0.0, 0.0), |(sum, strata), ring| {
            let of_ring: f32 = ring.pairs.iter().map(|pair| off_by(network, pair)).sum();
            (sum + of_ring / ring.pairs.len() as f32, strata + 1.0)
        });
        if strata == 0.0 {
            f32::INFINITY
        } else {
            sum / strata
        }
    }
}

fn stratum_of(pair: &Pair) -> usize {
    let share = (pair.environment.remote_share() * SHARES as f32) as usize;
    pair.group.mode() as usize * SHARES + share.min(SHARES - 1)
}

/// How far the logarithm of a prediction is off.
fn off_by(network: Option<&Network>, pair: &Pair) -> f32 {
    let predicted = network.map_or(1.0, |network| {
        network.strength(&network.hidden(&pair.environment), pair.group)
    });
    (predicted.ln() - pair.strength.ln()).abs()
}

/// The sum of the gradients of a batch: of half the squared difference of logarithms, by parameter.
struct Gradient(Box<[f32; PARAMETERS]>);

impl Gradient {
    fn new() -> Self {
        Gradient(Box::new([0.0; PARAMETERS]))
    }

    fn add(&mut self, network: &Network, pair: &Pair) {
        let inputs = pair.environment.inputs();
        let first = network.first(&inputs);
        let second = network.second(&first);
        let strength = sigmoid(network.raw(&Hidden(second), pair.group));
        // The derivative of ln(sigmoid(x)) is 1 - sigmoid(x).
        let off = (strength.ln() - pair.strength.ln()).clamp(-PULL_MAX, PULL_MAX);
        self.backward(
            network,
            pair.group,
            off * (1.0 - strength),
            (&inputs, &first, &second),
        );
    }

    fn backward(
        &mut self,
        network: &Network,
        group: Group,
        at_raw: f32,
        (inputs, first, second): (&[f32; INPUTS], &[f32; FIRST], &[f32; SECOND]),
    ) {
        let weights = network.parameters();
        let sums = &mut self.0;
        let out = OUT_WEIGHTS + group.index() * SECOND;
        sums[OUT_BIASES + group.index()] += at_raw;
        let mut at_second = [0.0; SECOND];
        for node in 0..SECOND {
            sums[out + node] += at_raw * second[node];
            at_second[node] = at_raw * weights[out + node] * slope(second[node]);
            sums[SECOND_BIASES + node] += at_second[node];
        }
        let mut at_first = [0.0; FIRST];
        for node in 0..FIRST {
            let start = SECOND_WEIGHTS + node * SECOND;
            for (next, at_next) in at_second.iter().enumerate() {
                sums[start + next] += at_next * first[node];
                at_first[node] += at_next * weights[start + next];
            }
            at_first[node] *= slope(first[node]);
            sums[FIRST_BIASES + node] += at_first[node];
        }
        for (input, start) in inputs.iter().zip((0..).step_by(FIRST)) {
            if *input != 0.0 {
                for (sum, at) in sums[start..start + FIRST].iter_mut().zip(&at_first) {
                    *sum += at * input;
                }
            }
        }
    }
}

/// The slope of a node that gives this: what it gives has the sign of what it got.
fn slope(node: f32) -> f32 {
    if node > 0.0 { 1.0 } else { LEAK }
}

/// Adam (Kingma and Ba 2015), with the authors' constants but for the rate.
#[derive(Clone, Debug)]
struct Adam {
    mean: Box<[f32; PARAMETERS]>,
    square: Box<[f32; PARAMETERS]>,
    /// What is left of the means' beginning at 0: the constants to the power of the steps so far.
    left: (f32, f32),
}

const RATE: f32 = 0.002;
const DECAY: (f32, f32) = (0.9, 0.999);
const EPSILON: f32 = 1e-8;

impl Adam {
    fn new() -> Self {
        Adam {
            mean: Box::new([0.0; PARAMETERS]),
            square: Box::new([0.0; PARAMETERS]),
            left: (1.0, 1.0),
        }
    }

    fn step(&mut self, parameters: &mut [f32; PARAMETERS], gradient: &[f32; PARAMETERS]) {
        self.left.0 *= DECAY.0;
        self.left.1 *= DECAY.1;
        let (to_mean, to_square) = (1.0 / (1.0 - self.left.0), 1.0 / (1.0 - self.left.1));
        for i in 0..PARAMETERS {
            let slope = gradient[i] / BATCH as f32;
            self.mean[i] += (slope - self.mean[i]) * (1.0 - DECAY.0);
            self.square[i] += (slope * slope - self.square[i]) * (1.0 - DECAY.1);
            let size = (self.square[i] * to_square).sqrt() + EPSILON;
            let next = parameters[i] - RATE * self.mean[i] * to_mean / size;
            parameters[i] = next.clamp(-WEIGHT_MAX, WEIGHT_MAX);
        }
    }
}

#[cfg(test)]
mod tests;
