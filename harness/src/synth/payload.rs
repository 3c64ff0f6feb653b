//! A synthetic payload without a file: every tensor of a manifest made in parts on all threads, in the layout that
//! the taker wants. The values are those that [`super::model::write_model`] would write.
use super::blocks::encode;
use super::model::{Container, dtype};
use super::values::{Fill, fill};
use crate::families::Model;
use crate::manifest::{Entry, Manifest, ManifestError};
use crate::recipe::Recipe;
use kernels::formats::Format;
use kernels::formats::planar::{TILE_ROWS, to_planar};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Values of a part, about: 4 MiB of f32 on each thread.
const PART: usize = 1 << 20;

/// Some rows of one tensor.
struct Part<'m> {
    entry: &'m Entry,
    name: &'m str,
    format: Format,
    first: usize,
    rows: usize,
    width: usize,
    planar: bool,
}

/// The container whose tensor names a model in `recipe` would be written with: GGUF where a format has blocks.
pub fn container(recipe: &Recipe, manifest: &Manifest) -> Container {
    let plain = |e: &Entry| matches!(e.format.as_str(), "f32" | "f16" | "bf16");
    match recipe.name.starts_with('q') || !manifest.entries.iter().all(plain) {
        true => Container::Gguf,
        false => Container::Safetensors,
    }
}

/// Every tensor of `manifest` with the name that keys its values.
///
/// # Errors
/// A manifest with a tensor that the model lacks.
pub fn named<'m>(
    model: &Model,
    container: Container,
    manifest: &'m Manifest,
) -> Result<Vec<(&'m Entry, String)>, ManifestError> {
    let specs = model.tensors().into_iter().chain(model.draft_tensors());
    let names: BTreeMap<String, String> =
        specs.map(|s| (s.name, if container == Container::Gguf { s.gguf } else { s.hf })).collect();
    let name = |e: &Entry| names.get(&e.name).cloned().ok_or_else(|| ManifestError::Missing(e.name.clone()));
    manifest.entries.iter().map(|e| Ok((e, name(e)?))).collect()
}

/// Makes the payload of `manifest` and hands each part to `put(offset, bytes)`, on this thread and in no order.
/// With `planar`, matrices of blocks come in planes.
///
/// # Errors
/// What `put` returns; a manifest that names an unknown format.
pub fn parts<E: From<ManifestError>>(
    model: &Model,
    container: Container,
    manifest: &Manifest,
    seed: u64,
    planar: bool,
    mut put: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let named = named(model, container, manifest)?;
    let mut all = Vec::new();
    for (entry, name) in &named {
        cut(entry, name, entry.parsed_format()?, planar, &mut all);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel::<(u64, Vec<u8>)>(2 * threads);
        for _ in 0..threads {
            let (send, next, all) = (send.clone(), &next, &all);
            scope.spawn(move || {
                let mut values = Vec::new();
                while let Some(part) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // The taker went away after an error of its own: nothing is left to do.
                    if send.send(part.make(seed, &mut values)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        receive.into_iter().try_for_each(|(at, bytes)| put(at, &bytes))
    })
}

/// Cuts a tensor into parts: whole tiles of rows where its planes lie by tile.
fn cut<'m>(entry: &'m Entry, name: &'m str, format: Format, planar: bool, out: &mut Vec<Part<'m>>) {
    let width = entry.shape.last().map_or(1, |w| *w as usize);
    let rows: usize = entry.shape.iter().rev().skip(1).product::<u64>() as usize;
    let matrix = entry.shape.iter().rev().nth(1).map_or(1, |n| *n as usize);
    let planar =
        planar && entry.shape.len() > 1 && !matches!(format, Format::F32 | Format::F16 | Format::Bf16);
    let about = (PART / width.max(1)).max(1).next_multiple_of(TILE_ROWS);
    // A stack of matrices whose last tile is short is cut at each matrix.
    let step = if planar && !matrix.is_multiple_of(TILE_ROWS) { matrix } else { about };
    for first in (0..rows).step_by(step.max(1)) {
        let rows = step.min(rows - first);
        out.push(Part { entry, name, format, first, rows, width, planar });
    }
}

impl Part<'_> {
    /// Its place in the payload and its bytes.
    fn make(&self, seed: u64, values: &mut Vec<f32>) -> (u64, Vec<u8>) {
        values.resize(self.rows * self.width, 0.0);
        let how = Fill::for_shape(&self.entry.shape);
        fill(how, seed, self.name, (self.first * self.width) as u64, values);
        let mut bytes = Vec::new();
        let done = dtype(self.format).and_then(|d| encode(d, values, &mut bytes));
        assert!(done.is_some(), "the manifest was laid out in whole blocks of formats that have encoders");
        let at = self.entry.offset + (bytes.len() / self.rows * self.first) as u64;
        if self.planar {
            let planes = to_planar(self.format, self.rows, self.width, &bytes);
            bytes = planes.expect("the bytes were just made for this shape");
        }
        (at, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::write_model;
    use super::super::values::stream_key;
    use super::*;
    use crate::containers::open;
    use crate::families::TINY;
    use crate::pack::Pack;
    use kernels::formats::planar::from_planar;

    /// Both tiny geometries: the payload made in parts is the payload of the pack of the written checkpoint.
    #[test]
    fn a_payload_made_in_parts_is_the_pack_of_the_written_file() {
        for (name, config, recipe) in TINY {
            let dir = tempfile::tempdir().unwrap();
            let mut config: serde_json::Value = serde_json::from_str(config).unwrap();
            config[crate::pack::SYNTHETIC_KEY] = true.into();
            let model = Model::from_config(&config).unwrap();
            let recipe = Recipe::builtin(recipe).unwrap();
            let laid = model.manifest_with_draft(&recipe).unwrap();
            let container = container(&recipe, &laid);
            let file = if container == Container::Gguf { "m.gguf" } else { "m.safetensors" };
            let path = dir.path().join(file);
            write_model(&path, &model, &recipe, container, 5, |_, _| {}).unwrap();
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            let checkpoint = if container == Container::Gguf { open(&path) } else { open(dir.path()) };
            let pack = Pack::write(&checkpoint.unwrap(), name, &recipe, &dir.path().join("p")).unwrap();
            let want = pack.weights().unwrap();
            let manifest = &pack.header.manifest;
            let mut have = vec![0u8; want.as_slice().len()];
            let mut put = |at: u64, bytes: &[u8]| -> Result<(), ManifestError> {
                have[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            parts(&model, container, manifest, 5, false, &mut put).unwrap();
            for e in &manifest.entries {
                let span = e.offset as usize..(e.offset + e.bytes) as usize;
                assert!(have[span.clone()] == want.as_slice()[span], "{name} {}", e.name);
            }
            let mut planar = vec![0u8; want.as_slice().len()];
            let mut put = |at: u64, bytes: &[u8]| -> Result<(), ManifestError> {
                planar[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            parts(&model, container, manifest, 5, true, &mut put).unwrap();
            for e in manifest.entries.iter().filter(|e| e.shape.len() > 1) {
                let (n, k) = (e.shape[e.shape.len() - 2] as usize, e.shape[e.shape.len() - 1] as usize);
                let each = e.parsed_format().unwrap().matrix_bytes(n, k).unwrap() as usize;
                let span = e.offset as usize..(e.offset + e.bytes) as usize;
                for (p, w) in planar[span.clone()].chunks(each).zip(want.as_slice()[span].chunks(each)) {
                    let blocks = from_planar(e.parsed_format().unwrap(), n, k, p).unwrap();
                    assert!(blocks == w, "{name} {}", e.name);
                }
            }
        }
    }

    /// The hashes that the device's kernels are compared with (kernels/tests/emulated/synth.rs) are of these bytes.
    #[test]
    fn the_bytes_that_devices_must_make_have_the_recorded_hashes() {
        let recorded = include_str!("../../../kernels/tests/emulated/synth.csv");
        let mut have = String::new();
        for format in Format::ALL {
            let mut values = vec![0.0; 2 * 20 * 512];
            fill(Fill::Normal(0.03), 9, "device", 0, &mut values);
            let mut bytes = Vec::new();
            encode(dtype(format).unwrap(), &values, &mut bytes).unwrap();
            let each = bytes.len() / 2;
            let planar = bytes.chunks(each).flat_map(|m| to_planar(format, 20, 512, m).unwrap());
            let hash = blake3::hash(&planar.collect::<Vec<u8>>()).to_hex()[..32].to_owned();
            have += &format!("{},{},{hash}\n", format.name(), stream_key(9, "device"));
        }
        assert_eq!(recorded, have, "kernels/tests/emulated/synth.csv holds other bytes");
    }
}
