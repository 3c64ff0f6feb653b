//! Whole synthetic models. One idea: geometry and recipe say which tensors there are and in which formats; the file is
//! then an ordinary checkpoint of that model.
use super::vocab;
use super::write::{SynthError, SynthTensor, write_gguf, write_safetensors};
use crate::containers::Dtype;
use crate::families::config::GeometryError;
use crate::families::{Model, PlanError};
use crate::recipe::{Recipe, RecipeError};
use kernels::formats::Format;
use std::path::Path;
use thiserror::Error;

/// The container to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// safetensors; the configuration goes beside it.
    Safetensors,
    /// GGUF, with a made-up vocabulary of the model's size.
    Gguf,
}

/// Why a model cannot be made up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SynthModelError {
    /// Writing.
    #[error(transparent)]
    Write(#[from] SynthError),
    /// The geometry has no form in the container.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The recipe does not cover the model.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// Formats do not fit the shapes.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A format that the container does not hold.
    #[error("tensor '{tensor}': {container} files do not hold {format}")]
    Format {
        /// The tensor.
        tensor: String,
        /// The container.
        container: &'static str,
        /// The format.
        format: &'static str,
    },
    /// No vocabulary has that size.
    #[error("vocab_size is {size}, a made-up vocabulary has {} to {} tokens", vocab::LEAST, vocab::MOST)]
    Vocabulary {
        /// The size.
        size: usize,
    },
}

/// The container's type for a format.
pub(super) fn dtype(format: Format) -> Option<Dtype> {
    const KNOWN: [Dtype; 8] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::BF16,
        Dtype::Q8_0,
        Dtype::Q4_K,
        Dtype::Q5_K,
        Dtype::Q6_K,
        Dtype::Q2_K,
    ];
    KNOWN.into_iter().find(|d| d.name().eq_ignore_ascii_case(format.name()))
}

/// The tensors of `model` in `recipe`, its draft head's among them, named as the container names them.
pub fn tensors(
    model: &Model,
    recipe: &Recipe,
    container: Container,
) -> Result<Vec<SynthTensor>, SynthModelError> {
    model.manifest_with_draft(recipe)?; // every shape holds whole blocks of its format, or the tensor is named
    let layers = model.summary().layers;
    let mut out = Vec::new();
    for spec in model.tensors().into_iter().chain(model.draft_tensors()) {
        let format = recipe.format(spec.class, spec.layer, layers)?;
        let (name, label) = match container {
            Container::Gguf => (spec.gguf.clone(), "GGUF"),
            Container::Safetensors => (spec.hf.clone(), "safetensors"),
        };
        let plain = matches!(format, Format::F32 | Format::F16 | Format::Bf16);
        let held = dtype(format).filter(|_| container == Container::Gguf || plain);
        let none =
            || SynthModelError::Format { tensor: name.clone(), container: label, format: format.name() };
        out.push(SynthTensor::new(name.clone(), held.ok_or_else(none)?, &spec.shape));
    }
    Ok(out)
}

/// Writes `model` in `recipe` to `path`. `progress` is told the bytes written so far and in all.
pub fn write_model(
    path: &Path,
    model: &Model,
    recipe: &Recipe,
    container: Container,
    seed: u64,
    progress: impl FnMut(u64, u64),
) -> Result<(), SynthModelError> {
    match container {
        Container::Safetensors => {
            let tensors = tensors(model, recipe, container)?;
            Ok(write_safetensors(path, &tensors, None, seed, progress)?)
        }
        Container::Gguf => {
            let mut metadata = model.to_gguf()?;
            let size = model.summary().vocab;
            if !vocab::add_to(&mut metadata, size) {
                return Err(SynthModelError::Vocabulary { size });
            }
            let tensors = tensors(model, recipe, container)?;
            Ok(write_gguf(path, &tensors, &metadata, seed, progress)?)
        }
    }
}
