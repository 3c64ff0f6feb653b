//! Placement: contiguous layers on stages, the largest stage as small as it can be.
//!
//! Decode time of a pipeline is set by its largest stage, so that is what is minimised. The cap is found by
//! bisection: whether layers fit stages of a given cap is one greedy pass, and it is monotone in the cap.

use crate::error::TopologyError;

/// One stage of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Its first layer.
    pub first_layer: usize,
    /// How many layers it holds; at least one.
    pub layers: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Layers on stages, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The stages.
    pub stages: Vec<Stage>,
    /// Bytes of the largest.
    pub largest_bytes: u64,
}

/// Places `layer_bytes`, in order, on exactly `stages` stages of at most `node_bytes` each, so that the
/// largest stage is as small as it can be. Fails closed, with the sum, if that one does not fit.
pub fn place_within(layer_bytes: &[u64], stages: u32, node_bytes: u64) -> Result<Placement, TopologyError> {
    let count = stages as usize;
    if count == 0 || layer_bytes.len() < count {
        return Err(TopologyError::TooFewLayers { layers: layer_bytes.len(), stages });
    }
    let total = layer_bytes.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes));
    let mut high =
        total.ok_or_else(|| TopologyError::Overflow { what: "the sum of layer bytes".to_owned() })?;
    let mut low = layer_bytes.iter().copied().max().unwrap_or(0); // no cap below the largest layer holds it
    while low < high {
        let cap = low.midpoint(high);
        if stages_needed(layer_bytes, cap) <= count { high = cap } else { low = cap + 1 }
    }
    let stages = fill(layer_bytes, count, low);
    let largest_bytes = stages.iter().map(|s| s.bytes).max().unwrap_or(0);
    if let Some((index, stage)) = stages.iter().enumerate().find(|(_, s)| s.bytes > node_bytes) {
        return Err(too_large(layer_bytes, index, stage, node_bytes));
    }
    Ok(Placement { stages, largest_bytes })
}

/// Stages a greedy pass opens at `cap`, which is at least the largest layer: the fewest there can be.
fn stages_needed(layer_bytes: &[u64], cap: u64) -> usize {
    let mut opened = 1;
    let mut held = 0u64;
    for &bytes in layer_bytes {
        // held <= cap always, so the subtraction cannot wrap.
        if bytes > cap - held {
            opened += 1;
            held = 0;
        }
        held += bytes;
    }
    opened
}

/// The greedy pass again, but leaving one layer for each stage still to come: splitting a stage that fits
/// gives stages that fit.
fn fill(layer_bytes: &[u64], count: usize, cap: u64) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::with_capacity(count);
    for (layer, &bytes) in layer_bytes.iter().enumerate() {
        let (layers_left, stages_left) = (layer_bytes.len() - layer, count - stages.len());
        match stages.last_mut() {
            Some(stage) if bytes <= cap - stage.bytes && layers_left > stages_left => {
                stage.layers += 1;
                stage.bytes += bytes;
            }
            _ => stages.push(Stage { first_layer: layer, layers: 1, bytes }),
        }
    }
    stages
}

fn too_large(layer_bytes: &[u64], index: usize, stage: &Stage, available: u64) -> TopologyError {
    const SHOWN: usize = 8;
    let held = &layer_bytes[stage.first_layer..stage.first_layer + stage.layers];
    let mut terms: Vec<String> = held.iter().take(SHOWN).map(u64::to_string).collect();
    if let Some(rest) = held.get(SHOWN..).filter(|rest| !rest.is_empty()) {
        terms.push(format!("{} more of {}", rest.len(), rest.iter().sum::<u64>()));
    }
    TopologyError::StageTooLarge {
        stage: index,
        first: stage.first_layer,
        last: stage.first_layer + stage.layers - 1,
        sum: terms.join(" + "),
        needed: stage.bytes,
        available,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The smallest largest stage, by trying every split.
    fn best(layers: &[u64], stages: usize) -> u64 {
        if stages == 1 {
            return layers.iter().sum();
        }
        let split = |at: usize| layers[..at].iter().sum::<u64>().max(best(&layers[at..], stages - 1));
        (1..=layers.len() - stages + 1).map(split).min().unwrap()
    }

    proptest! {
        #[test]
        fn the_placement_is_contiguous_complete_and_best(
            layers in proptest::collection::vec(0u64..50, 1..11),
            stages in 1u32..11,
        ) {
            let placed = place_within(&layers, stages, u64::MAX);
            if layers.len() < stages as usize {
                let too_few = matches!(placed, Err(TopologyError::TooFewLayers { .. }));
                prop_assert!(too_few);
                return Ok(());
            }
            let placed = placed.unwrap();
            prop_assert_eq!(placed.stages.len(), stages as usize);
            let mut next = 0;
            for stage in &placed.stages {
                prop_assert_eq!(stage.first_layer, next);
                prop_assert!(stage.layers >= 1);
                let held: u64 = layers[next..next + stage.layers].iter().sum();
                prop_assert_eq!(stage.bytes, held);
                next += stage.layers;
            }
            prop_assert_eq!(next, layers.len());
            prop_assert_eq!(placed.largest_bytes, best(&layers, stages as usize));
        }

        #[test]
        fn a_placement_never_exceeds_the_node(
            layers in proptest::collection::vec(any::<u64>(), 1..40),
            stages in 0u32..20,
            node in any::<u64>(),
        ) {
            if let Ok(placed) = place_within(&layers, stages, node) {
                prop_assert!(placed.largest_bytes <= node);
            }
        }
    }

    #[test]
    fn what_does_not_fit_shows_the_sum() {
        let err = place_within(&[60, 50, 40, 70], 2, 100).unwrap_err().to_string();
        assert_eq!(err, "stage 0 (layers 0..=1) does not fit: 60 + 50 = 110 B > 100 B of the node");
        let err = place_within(&[10; 12], 1, 100).unwrap_err().to_string();
        assert!(err.contains("+ 4 more of 40 = 120 B > 100 B"), "{err}");
    }

    #[test]
    fn sums_beyond_64_bits_and_no_stages_are_errors() {
        assert!(matches!(place_within(&[u64::MAX, 1], 1, 1), Err(TopologyError::Overflow { .. })));
        assert!(matches!(place_within(&[1], 0, 1), Err(TopologyError::TooFewLayers { .. })));
        assert!(matches!(place_within(&[], 1, 1), Err(TopologyError::TooFewLayers { .. })));
    }
}
