//! Writes the sample report's files to the directory in `LEDGER_SAMPLES`, to be looked at.
mod common;

use ledger::{Format, render};

#[test]
fn samples_render_in_every_format() {
    let report = common::report(8, &[1, 8, 64, 1024]);
    let dir = std::env::var_os("LEDGER_SAMPLES").map(std::path::PathBuf::from);
    for (name, format) in Format::ALL {
        let text = render(&report, format).expect("the sample has everything");
        assert!(!text.is_empty(), "{name}");
        if let Some(dir) = &dir {
            let kind = name.split('-').next().unwrap_or(name);
            std::fs::write(dir.join(format!("{name}.{kind}")), text).expect("the directory exists");
        }
    }
}
