//! Smaller configurations of a known one. One idea: only fields that the configuration has are changed, and the
//! family's own reader judges the result.
use serde_json::Value;

/// What to change; `None` keeps the configuration's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale {
    /// Layers.
    pub layers: Option<usize>,
    /// Routed experts of a layer.
    pub experts: Option<usize>,
    /// Width of the residual stream.
    pub hidden: Option<usize>,
    /// Width of the MLP, or of an expert where there are experts.
    pub width: Option<usize>,
    /// Vocabulary.
    pub vocab: Option<usize>,
}

/// A configuration that has no field to scale.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configuration has no field '{field}' to scale")]
pub struct NoField {
    /// The field.
    pub field: &'static str,
}

const LAYERS: &str = "num_hidden_layers";
const EXPERTS: &str = "num_experts";
const EXPERTS_USED: &str = "num_experts_per_tok";
const LAYER_TYPES: &str = "layer_types";
const PERIOD: &str = "full_attention_interval";

/// The object that holds the text model's fields.
fn text_of(config: &mut Value) -> &mut Value {
    if config.get("text_config").is_some() { &mut config["text_config"] } else { config }
}

fn size(object: &Value, field: &str) -> Option<usize> {
    object.get(field)?.as_u64()?.try_into().ok()
}

impl Scale {
    /// A fraction of the layers and of the experts: at least one period of layer types, at least the experts a
    /// token uses. Widths stay, so that rows keep whole blocks of every format.
    #[must_use]
    pub fn fraction(config: &Value, fraction: f64) -> Scale {
        let mut config = config.clone();
        let text = text_of(&mut config);
        let part = |n: usize| ((n as f64 * fraction).round() as usize).clamp(1, n.max(1));
        let period = size(text, PERIOD).unwrap_or(1).max(1);
        let experts = size(text, EXPERTS);
        let used = size(text, EXPERTS_USED).unwrap_or(1);
        Scale {
            layers: size(text, LAYERS).map(|n| part(n).next_multiple_of(period).min(n)),
            experts: experts.map(|n| part(n).max(used).min(n)),
            ..Scale::default()
        }
    }

    /// `self` where it says something, else `other`.
    #[must_use]
    pub fn or(self, other: Scale) -> Scale {
        Scale {
            layers: self.layers.or(other.layers),
            experts: self.experts.or(other.experts),
            hidden: self.hidden.or(other.hidden),
            width: self.width.or(other.width),
            vocab: self.vocab.or(other.vocab),
        }
    }

    /// The configuration with the changes made.
    pub fn apply(&self, config: &Value) -> Result<Value, NoField> {
        let mut config = config.clone();
        let text = text_of(&mut config);
        let width = if text.get(EXPERTS).is_some() { "moe_intermediate_size" } else { "intermediate_size" };
        for (field, value) in [
            (LAYERS, self.layers),
            (EXPERTS, self.experts),
            ("hidden_size", self.hidden),
            (width, self.width),
            ("vocab_size", self.vocab),
        ] {
            let Some(value) = value else { continue };
            *text.get_mut(field).ok_or(NoField { field })? = value.into();
        }
        if let (Some(layers), Some(types)) =
            (self.layers, text.get_mut(LAYER_TYPES).and_then(Value::as_array_mut))
        {
            let pattern = types.clone();
            *types = pattern.into_iter().cycle().take(layers.min(1 << 16)).collect();
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::Model;

    #[test]
    fn every_known_model_shrinks_to_a_model_its_reader_accepts() {
        for (name, text, _) in Model::known() {
            let config: Value = serde_json::from_str(text).unwrap();
            let full = Model::from_config(&config).unwrap().summary();
            for fraction in [0.001, 0.1, 0.5, 1.0] {
                let scale = Scale::fraction(&config, fraction);
                let small = Model::from_config(&scale.apply(&config).unwrap()).unwrap().summary();
                assert!(small.layers >= 1 && small.layers <= full.layers, "{name} {fraction}");
                if fraction == 1.0 {
                    assert_eq!(small, full);
                } else {
                    assert!(small.layers < full.layers, "{name} {fraction}");
                }
            }
        }
    }

    #[test]
    fn a_field_the_configuration_lacks_is_named() {
        let scale = Scale { experts: Some(4), ..Scale::default() };
        let config = serde_json::json!({"num_hidden_layers": 2});
        assert_eq!(scale.apply(&config), Err(NoField { field: "num_experts" }));
        let own = Scale { layers: Some(3), ..Scale::default() };
        assert_eq!(own.or(scale), Scale { layers: Some(3), experts: Some(4), ..Scale::default() });
    }
}
