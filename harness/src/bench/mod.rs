//! Benches: each launch of a plan alone, on seeded random data, timed and compared with f64.
//!
//! The cases are read from the plans themselves: whatever a family launches has a bench, or the coverage test
//! names it. [`cases`] cuts the launches out, [`Bench`] fills, checks and times one of them.
pub mod case;
pub mod cuda;
mod fill;
pub mod measure;
mod reference;
mod reference_seq;
mod sample;

pub use case::{Case, PhaseOf, cases, needs};
pub use measure::{Bench, BenchError, Row, State};
pub use reference::tolerance;
pub use sample::Check;

use crate::families::{self, Model, PlanError};
use crate::manifest::Manifest;
use crate::recipe::{Recipe, RecipeError};
use kernels::formats::Format;
use thiserror::Error;

/// A geometry and the layout of its weights; no weights.
pub struct Geometry {
    /// Model name.
    pub name: String,
    /// Geometry.
    pub model: Model,
    /// Where each tensor would lie and in which format.
    pub manifest: Manifest,
}

/// Why the geometries that ship with the program cannot be read.
#[derive(Debug, Error)]
pub enum GeometryError {
    /// A config is not JSON.
    #[error("geometry '{name}': {source}")]
    Json {
        /// Which.
        name: String,
        /// Cause.
        source: serde_json::Error,
    },
    /// A config is not of a known family.
    #[error(transparent)]
    Family(#[from] families::config::GeometryError),
    /// Recipe.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// Layout.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// A geometry from the text of its config.json.
pub fn geometry(name: &str, config: &str, recipe: &Recipe) -> Result<Geometry, GeometryError> {
    let json = |source| GeometryError::Json { name: name.into(), source };
    let model = Model::from_config(&serde_json::from_str(config).map_err(json)?)?;
    let manifest = model.manifest_with_draft(recipe)?;
    Ok(Geometry { name: name.into(), model, manifest })
}

/// A recipe that holds every matrix in `format`, and norms, routers and convolutions in f32.
fn uniform(format: Format) -> Result<Recipe, RecipeError> {
    let format = format.name();
    let text = format!(
        "name='{format}'\nnumeric_class='bf16'\n[formats]\ndefault='{format}'\nnorm='f32'\nrouter='f32'\nconv='f32'\n"
    );
    Recipe::parse(format, &text)
}

/// What `bench` runs unless told otherwise: the built-in model, the two tiny tracked geometries, and the tiny
/// geometries again in each weight format their rows have whole blocks of.
pub fn builtin_geometries() -> Result<Vec<Geometry>, GeometryError> {
    let own = (crate::builtin::NAME, crate::builtin::CONFIG, crate::builtin::RECIPE);
    let mut out = Vec::new();
    for (name, config, recipe) in [own].into_iter().chain(families::TINY) {
        out.push(geometry(name, config, &Recipe::builtin(recipe)?)?);
    }
    for (name, config, _) in families::TINY {
        for format in Format::ALL {
            match geometry(&format!("{name}.{}", format.name()), config, &uniform(format)?) {
                Ok(geometry) => out.push(geometry),
                Err(GeometryError::Plan(PlanError::Manifest(_))) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(out)
}
