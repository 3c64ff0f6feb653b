//! Writes the sample report's files to the directory in `LEDGER_SAMPLES`, to be looked at.
mod common;

use ledger::{Closure, ClosureLine, Format, Nanos, render};

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

#[test]
fn crowded_figures_still_render() {
    let mut report = common::report(8, &[1, 2, 3, 4, 8, 16, 32, 64]);
    report.model = "a model with a name that is far longer than any figure is wide ".repeat(3);
    for ledger in report.ledgers.values_mut() {
        for (i, line) in ledger.lines.iter_mut().enumerate() {
            line.name = format!("{}.with.a.long.suffix.{i}", line.name);
        }
    }
    let step = Nanos(400_000);
    let groups = report.ledgers[&1].groups();
    let lines = groups.into_iter().map(|g| ClosureLine {
        time: Nanos(g.dram.total().0 / 250 + 2_000),
        bytes: g.dram.total(),
        count: g.launches,
        name: g.key.name,
        kind: g.key.kind,
    });
    let closure = Closure::new(lines.collect(), Nanos(30_000), Nanos(0), step).expect("in range");
    assert!(closure.unexplained() < 0, "the parts exceed this step");
    report.closure = Some(closure);
    let dir = std::env::var_os("LEDGER_SAMPLES").map(std::path::PathBuf::from);
    for (name, format) in [("b", Format::Svg), ("t", Format::SvgTime), ("c", Format::SvgClosure)] {
        let text = render(&report, format).expect("the sample has everything");
        assert!(!text.contains("NaN") && !text.contains("\"-"), "{name}: all coordinates lie on the sheet");
        if let Some(dir) = &dir {
            std::fs::write(dir.join(format!("crowded-{name}.svg")), text).expect("the directory exists");
        }
    }
}
