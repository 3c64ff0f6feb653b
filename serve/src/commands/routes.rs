//! Recording of actual expert routes, in the format that `ledger --routes` prices with.
use anyhow::{Context, Result};
use harness::engine::Engine;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

static STEP: AtomicU64 = AtomicU64::new(0);

/// Appends the routes of the engine's last step: one line a layer, the chosen experts of every row.
pub fn append(path: &Path, engine: &Engine) -> Result<()> {
    let step = STEP.fetch_add(1, Ordering::Relaxed);
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("routes {}", path.display()))?;
    for (layer, experts) in engine.routes().iter().enumerate() {
        let line = serde_json::json!({"step": step, "layer": layer, "experts": experts});
        writeln!(file, "{line}")?;
    }
    Ok(())
}
