//! Recipes: which format each class of tensors is held in, and the numeric class it runs in.
//!
//! A recipe is a TOML file. `as_released` keeps whatever the checkpoint stores; a class table replaces it.
use kernels::formats::Format;
use kernels::numeric::NumericClass;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// A recipe that cannot be read or does not fit a model.
#[derive(Debug, Error)]
pub enum RecipeError {
    /// Not TOML, or an unknown key.
    #[error("recipe '{name}': {source}")]
    Syntax {
        /// Recipe.
        name: String,
        /// Cause.
        source: toml::de::Error,
    },
    /// A format nobody knows.
    #[error("recipe '{name}': class '{class}' names the unknown format '{format}'")]
    Format {
        /// Recipe.
        name: String,
        /// Tensor class.
        class: String,
        /// Format.
        format: String,
    },
    /// No such recipe.
    #[error("no recipe is called '{name}'; known: {known}")]
    Unknown {
        /// Name asked for.
        name: String,
        /// Known names.
        known: String,
    },
    /// A class the recipe says nothing about.
    #[error("recipe '{name}' gives no format for tensor class '{class}' and no default")]
    Missing {
        /// Recipe.
        name: String,
        /// Tensor class.
        class: String,
    },
}

/// Rule that gives some layers of some classes another format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoreBits {
    /// Classes it applies to.
    pub classes: Vec<String>,
    /// The format of the chosen layers.
    pub format: String,
}

/// A recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name.
    pub name: String,
    /// Numeric class it runs in unless the command line says otherwise.
    pub numeric_class: NumericClass,
    /// Keep the checkpoint's own formats.
    #[serde(default)]
    pub as_released: bool,
    /// Format by tensor class; `default` stands for all others. Without weights it also says what a released
    /// checkpoint holds.
    pub formats: BTreeMap<String, String>,
    /// Layers with more bits: the first and last eighth, and every third between.
    #[serde(default)]
    pub more_bits: Option<MoreBits>,
}

const BUILTIN: [(&str, &str); 2] =
    [("bf16", include_str!("../recipes/bf16.toml")), ("q4_k_m", include_str!("../recipes/q4_k_m.toml"))];

impl Recipe {
    /// Reads a recipe.
    pub fn parse(name: &str, text: &str) -> Result<Self, RecipeError> {
        let recipe: Self =
            toml::from_str(text).map_err(|source| RecipeError::Syntax { name: name.into(), source })?;
        recipe.validate(name)?;
        Ok(recipe)
    }

    /// Whether every format it names is known; `name` is how messages call it.
    pub fn validate(&self, name: &str) -> Result<(), RecipeError> {
        let extra = self.more_bits.iter().map(|m| ("more_bits", &m.format));
        for (class, format) in self.formats.iter().map(|(c, f)| (c.as_str(), f)).chain(extra) {
            if Format::from_name(format).is_none() {
                let (name, class, format) = (name.into(), class.into(), format.clone());
                return Err(RecipeError::Format { name, class, format });
            }
        }
        Ok(())
    }

    /// A recipe that ships with the program.
    pub fn builtin(name: &str) -> Result<Self, RecipeError> {
        let known = || BUILTIN.map(|(n, _)| n).join(", ");
        let (_, text) = BUILTIN
            .iter()
            .find(|(n, _)| *n == name)
            .ok_or_else(|| RecipeError::Unknown { name: name.into(), known: known() })?;
        Self::parse(name, text)
    }

    /// Names of the recipes that ship with the program.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(n, _)| *n)
    }

    /// The format of a tensor of `class` in `layer` of `layers`.
    pub fn format(&self, class: &str, layer: Option<u16>, layers: usize) -> Result<Format, RecipeError> {
        if let (Some(more), Some(layer)) = (&self.more_bits, layer)
            && more.classes.iter().any(|c| c == class)
            && has_more_bits(usize::from(layer), layers)
        {
            return Ok(Format::from_name(&more.format).expect("validate checked the name"));
        }
        let name = self.formats.get(class).or_else(|| self.formats.get("default"));
        let missing = || RecipeError::Missing { name: self.name.clone(), class: class.into() };
        Ok(Format::from_name(name.ok_or_else(missing)?).expect("validate checked the name"))
    }
}

/// The layers that mixed 4-bit recipes of the GGUF world hold in more bits (integer divisions).
fn has_more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bits_layers_match_the_published_set() {
        let chosen: Vec<usize> = (0..48).filter(|l| has_more_bits(*l, 48)).collect();
        let want: Vec<usize> = (0..6).chain((8..=41).step_by(3)).chain(42..48).collect();
        assert_eq!(chosen, want);
        assert_eq!(chosen.len(), 24);
    }

    #[test]
    fn unknown_keys_and_formats_are_errors() {
        let bad = "name='x'\nnumeric_class='bf16'\nspeed='fast'\n[formats]\ndefault='bf16'\n";
        assert!(matches!(Recipe::parse("x", bad), Err(RecipeError::Syntax { .. })));
        let bad = "name='x'\nnumeric_class='bf16'\n[formats]\ndefault='FP3'\n";
        let error = Recipe::parse("x", bad).unwrap_err().to_string();
        assert!(error.contains("FP3"), "{error}");
    }

    #[test]
    fn every_builtin_recipe_parses_under_its_own_name() {
        for name in Recipe::names() {
            assert_eq!(Recipe::builtin(name).unwrap().name, name);
        }
    }
}
