//! Reports print what the ledger holds: sums agree in every format, and what is written reads back.
#![allow(clippy::unwrap_used)]
mod common;

use ledger::reports::{csv, html, json};
use ledger::*;
use proptest::prelude::*;

/// Sum of `column` over the rows of a CSV text.
fn column_sum(text: &str, column: &str) -> u64 {
    let mut reader = ::csv::Reader::from_reader(text.as_bytes());
    let at = reader.headers().unwrap().iter().position(|h| h == column).unwrap();
    reader.records().map(|r| r.unwrap()[at].parse::<u64>().unwrap()).sum()
}

#[test]
fn every_format_renders_and_holds_the_exact_total() {
    let report = common::report(8, &csv::GOLDEN_BATCHES);
    for (name, format) in Format::ALL {
        assert_eq!(name.parse::<Format>().unwrap(), format);
        let text = render(&report, format).unwrap();
        assert!(text.lines().count() > 6, "{name}");
    }
    assert!("pdf".parse::<Format>().is_err());
    let table = render(&report, Format::Table).unwrap();
    let page = render(&report, Format::Html).unwrap();
    for ledger in report.ledgers.values() {
        let exact = grouped(ledger.touched().total().0);
        assert!(table.contains(&exact) && page.contains(&exact), "{exact}");
    }
}

#[test]
fn golden_summary_of_the_sample_model() {
    let report = common::report(8, &csv::GOLDEN_BATCHES);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/sample.csv");
    check_golden(path, &csv::summary(&report).unwrap()).unwrap();
}

#[test]
fn figures_are_text_and_escaped() {
    let report = common::report(8, &[1, 64]);
    for format in [Format::Svg, Format::SvgTime, Format::SvgClosure] {
        let svg = render(&report, format).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("<text") && svg.contains("tiny &lt;moe&gt; &amp; co"), "{format:?}");
        assert!(!svg.contains("<moe>"));
    }
    let page = render(&report, Format::Html).unwrap();
    assert_eq!(page.matches("<svg").count(), 3);
    assert!(!page.contains("<moe>") && page.contains("<h1>tiny &lt;moe&gt; &amp; co in bf16 on gb10</h1>"));
    assert_eq!(html::escape("<a b=\"c\" d='&'>"), "&lt;a b=&quot;c&quot; d=&#39;&amp;&#39;&gt;");
}

#[test]
fn control_characters_reach_neither_terminal_nor_figure() {
    let mut report = common::report(2, &[1]);
    report.model = "a\u{1b}[2Jb\u{0}c".into();
    let text = render(&report, Format::Table).unwrap();
    assert!(text.starts_with("a?[2Jb?c in bf16"), "{text}");
    assert!(render(&report, Format::Svg).unwrap().contains("a?[2Jb?c"));
}

#[test]
fn a_report_without_data_says_what_it_lacks() {
    let mut report = common::report(2, &[1]);
    report.closure = None;
    report.measured.clear();
    report.device = DeviceProfile::host(Bytes(1 << 20));
    assert!(matches!(render(&report, Format::SvgClosure), Err(ReportError::Nothing { .. })));
    assert!(matches!(render(&report, Format::SvgTime), Err(ReportError::Nothing { .. })));
    assert_eq!(render(&report, Format::Html).unwrap().matches("<svg").count(), 1);
    report.ledgers.clear();
    assert!(matches!(render(&report, Format::Svg), Err(ReportError::Nothing { .. })));
    assert!(render(&report, Format::Table).is_ok());
}

#[test]
fn tampered_files_are_refused() {
    let report = common::report(2, &[1]);
    let text = json::write(&report).unwrap();
    assert_eq!(json::read(&text).unwrap(), report);
    let active = format!("\"active\": {}", report.summary()[0].active.0);
    let forged = text.replacen(&active, "\"active\": 1", 1);
    assert!(matches!(json::read(&forged), Err(ReportError::Summary { batch: 1 })));
    let mut huge: serde_json::Value = serde_json::from_str(&text).unwrap();
    huge["report"]["ledgers"]["1"]["lines"][0]["touched"]["read"][1] = u64::MAX.into();
    let forged = huge.to_string();
    assert!(matches!(json::read(&forged), Err(ReportError::TooLarge { batch: 1, .. })));
    let lines = csv::lines(&report).unwrap();
    let error = csv::read_lines(&lines.replacen("touched_kv_read", "kv", 1)).unwrap_err().to_string();
    assert!(error.contains("row 1, column touched_kv_read: \"kv\" is not the name"), "{error}");
    let error = csv::read_lines(&lines.replacen("\n1,0,", "\n1,-1,", 1)).unwrap_err().to_string();
    assert!(error.contains("row 2, column launch: \"-1\" is not an integer"), "{error}");
}

/// Any ledger line; names include what CSV must quote.
fn any_line() -> impl Strategy<Value = EvaluatedLine> {
    let cells = || proptest::array::uniform6(0u64..1 << 40).prop_map(|c| c.map(Bytes));
    let traffic = || (cells(), cells()).prop_map(|(read, write)| Traffic { read, write });
    let name = "[a-c,\"\n ]{0,4}";
    let layer = proptest::option::of(any::<u16>());
    ((0usize..9, name, name, "[ab]", layer), traffic(), traffic()).prop_map(|(key, touched, dram)| {
        let (launch, name, op, kind, layer) = key;
        EvaluatedLine { launch, op, name, kind, layer, touched, dram }
    })
}

fn any_report() -> impl Strategy<Value = Report> {
    let ledger = proptest::collection::vec(any_line(), 1..20).prop_map(|lines| StepLedger {
        facts: StepFacts::decode(1, 10, 2, 1.5),
        last_cache: Bytes(1000),
        launches: 9,
        lines,
    });
    proptest::collection::btree_map(1u64..2000, ledger, 1..4)
        .prop_map(|ledgers| Report::new("m", "r", DeviceProfile::host(Bytes(1000)), Bytes(5), ledgers))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sums_of_all_views_equal_the_ledger(report in any_report()) {
        let summary_csv = csv::summary(&report).unwrap();
        let rows = csv::read_lines(&csv::lines(&report).unwrap()).unwrap();
        for (batch, ledger) in &report.ledgers {
            let (touched, dram) = (ledger.touched(), ledger.dram());
            let mut from_kinds = Traffic::default();
            ledger.kinds().iter().for_each(|k| from_kinds.merge(&k.touched));
            prop_assert_eq!(from_kinds, touched);
            let mut from_groups = Traffic::default();
            ledger.groups().iter().for_each(|g| from_groups.merge(&g.dram));
            prop_assert_eq!(from_groups, dram);
            let mut from_rows = Traffic::default();
            let of_batch = || rows.iter().filter(|r| r.batch == *batch);
            of_batch().for_each(|r| from_rows.merge(&r.touched));
            prop_assert_eq!(from_rows, touched);
            prop_assert_eq!(of_batch().map(|r| r.dram_read).sum::<Bytes>(), dram.reads());
            prop_assert_eq!(of_batch().map(|r| r.dram_write).sum::<Bytes>(), dram.writes());
            prop_assert_eq!(column_sum(&summary_csv, &format!("touched_b{batch}")), touched.total().0);
            prop_assert_eq!(column_sum(&summary_csv, &format!("dram_b{batch}")), dram.total().0);
            let lines = column_sum(&summary_csv, &format!("lines_b{batch}"));
            prop_assert_eq!(lines, ledger.lines.len() as u64);
        }
    }

    #[test]
    fn csv_and_json_round_trip(report in any_report()) {
        let rows = csv::read_lines(&csv::lines(&report).unwrap()).unwrap();
        let lines: Vec<&EvaluatedLine> = report.ledgers.values().flat_map(|l| &l.lines).collect();
        prop_assert_eq!(rows.len(), lines.len());
        for (row, line) in rows.iter().zip(lines) {
            prop_assert_eq!((row.launch, row.layer), (line.launch, line.layer));
            let key = LineKey { kind: line.kind.clone(), name: line.name.clone(), op: line.op.clone() };
            prop_assert_eq!(&row.key, &key);
            prop_assert_eq!(row.touched, line.touched);
        }
        prop_assert_eq!(json::read(&json::write(&report).unwrap()).unwrap(), report);
    }

    #[test]
    fn a_diff_accounts_for_the_whole_change(a in any_report(), b in any_report()) {
        let first = |r: &Report| r.ledgers.values().next().cloned().unwrap();
        let (a, b) = (first(&a), first(&b));
        let diff = LedgerDiff::new(&a, &b);
        let bytes = |g: &Option<Group>| g.as_ref().map_or(0, |g| g.touched.total().0 as i128);
        let change: i128 = diff.entries.iter().map(|e| bytes(&e.after) - bytes(&e.before)).sum();
        prop_assert_eq!(change, i128::from(diff.touched.1) - i128::from(diff.touched.0));
        prop_assert!(LedgerDiff::new(&a, &a).is_empty());
    }
}

#[test]
fn measured_routes_price_below_the_expectation_when_rows_agree() {
    let routes: String = (0..4u16)
        .map(|layer| format!("{{\"step\":0,\"layer\":{layer},\"experts\":[[0,1,2,3],[0,1,2,3]]}}\n"))
        .collect();
    let routes = Routes::read(routes.as_bytes(), RouteLimits::new(64)).unwrap();
    let lines = common::lines(4);
    let base = StepFacts::decode(2, 1000, 4, expected_distinct_experts(64, 4, 2));
    let price =
        |facts: &StepFacts| StepLedger::evaluate(&lines, lines.len(), facts, Bytes(0)).touched().total().0;
    let saved = price(&base) - price(&routes.mean_facts(&base));
    // 7.75 experts expected, 4 used, in 4 layers.
    assert_eq!(saved, (4.0 * 3.75 * 3.0 * 2.0 * 1024.0 * 256.0) as u64);
}
