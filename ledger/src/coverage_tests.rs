//! Tests of recorded routes: counts, means, and refusal of malformed files.
use super::*;

const GOOD: &str = r#"{"step":0,"layer":2,"experts":[[0,1],[1,2]]}
{"step":0,"layer":5,"experts":[[3,1],[1,3]]}

{"step":1,"layer":2,"experts":[[0,1],[2,3]]}
{"step":1,"layer":5,"experts":[[0,1],[0,1]]}
"#;

fn read(text: &str) -> Result<Routes, RouteError> {
    Routes::read(text.as_bytes(), RouteLimits::new(4))
}

#[test]
fn distinct_counts_means_and_loads() {
    let routes = read(GOOD).expect("valid");
    assert_eq!(routes.layers(), [2, 5]);
    assert_eq!(routes.steps().collect::<Vec<_>>(), [0, 1]);
    assert_eq!((routes.top_k(), routes.rows(1)), (2, Some(2)));
    assert_eq!(routes.distinct(0), Some(vec![3, 2]));
    assert_eq!(routes.distinct(1), Some(vec![4, 2]));
    assert_eq!(routes.mean_distinct(), [3.5, 2.0]);
    // Two rows: expert 1 once, and both experts of layer 5 in both steps. One row: the other six.
    assert_eq!(routes.rows_per_expert(), BTreeMap::from([(1, 6), (2, 5)]));
    let base = StepFacts { rows: 2, ..StepFacts::default() };
    assert_eq!(routes.mean_facts(&base).experts, [3.5, 2.0]);
    assert_eq!(routes.facts_of(1, &base).map(|f| f.experts), Some(vec![4.0, 2.0]));
    assert_eq!(routes.facts_of(9, &base), None);
    let coverage = routes.coverage();
    assert_eq!(coverage[0].uniform, 3.0, "4 (1 - (1/2)^2)");
    assert!((coverage[1].ratio() - 2.0 / 3.0).abs() < 1e-12);
}

#[test]
fn steps_of_a_server_are_told_apart_by_their_rows() {
    let mixed = format!(
        "{GOOD}{}",
        r#"{"step":2,"layer":2,"experts":[[0,1]]}
{"step":2,"layer":5,"experts":[[2,3]]}
"#
    );
    let routes = read(&mixed).expect("valid");
    assert_eq!(routes.row_counts(), BTreeSet::from([1, 2]));
    assert_eq!(routes.of_rows(2), Some(read(GOOD).expect("valid")));
    assert_eq!(routes.of_rows(1).map(|r| r.mean_distinct()), Some(vec![2.0, 2.0]));
    assert_eq!(routes.of_rows(3), None);
}

#[test]
fn uniform_routes_meet_the_expectation() {
    let mut text = String::new();
    let mut state = 1u64;
    for step in 0..400 {
        let rows: Vec<Vec<u16>> = (0..8)
            .map(|_| {
                let mut ids: Vec<u16> = (0..32).collect();
                for i in 0..4 {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    ids.swap(i, i + (state >> 33) as usize % (32 - i));
                }
                ids.truncate(4);
                ids
            })
            .collect();
        text += &serde_json::to_string(&RouteRecord { step, layer: 0, experts: rows }).expect("serialises");
        text.push('\n');
    }
    let routes = Routes::read(text.as_bytes(), RouteLimits::new(32)).expect("valid");
    let ratio = routes.coverage()[0].ratio();
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
}

#[test]
fn malformed_files_name_line_and_value() {
    let cases = [
        ("", "no records"),
        ("{\"step\":0,\"layer\":0,\"experts\":[]}", "no records"),
        ("nonsense", "line 1: expected"),
        ("{\"step\":0,\"layer\":0,\"experts\":[[0]],\"x\":1}", "unknown field `x`"),
        ("{\"step\":0,\"layer\":0,\"experts\":[[0,4]]}", "line 1, row 0: expert 4 is not below 4"),
        ("{\"step\":0,\"layer\":0,\"experts\":[[1,1]]}", "row 0: expert 1 appears twice"),
        ("{\"step\":0,\"layer\":0,\"experts\":[[1,2],[1]]}", "row 1: 1 experts, the file's rows have 2"),
        ("{\"step\":0,\"layer\":0,\"experts\":[[]]}", "row 0: 0 experts"),
        (
            "{\"step\":0,\"layer\":0,\"experts\":[[1]]}\n{\"step\":0,\"layer\":0,\"experts\":[[1]]}",
            "line 2: step 0 layer 0 was given before",
        ),
        (
            "{\"step\":0,\"layer\":0,\"experts\":[[1]]}\n{\"step\":1,\"layer\":1,\"experts\":[[1]]}",
            "step 0, layer 1: 0 rows, the step has 1",
        ),
        (
            "{\"step\":0,\"layer\":0,\"experts\":[[1]]}\n{\"step\":0,\"layer\":1,\"experts\":[[1],[2]]}",
            "step 0, layer 1: 2 rows, the step has 1",
        ),
    ];
    for (text, want) in cases {
        let error = read(text).expect_err(text).to_string();
        assert!(error.contains(want), "{error:?} lacks {want:?}");
    }
}

#[test]
fn sizes_are_bounded() {
    let read = |limits| Routes::read(GOOD.as_bytes(), limits).map_err(|e| e.to_string());
    let limits = RouteLimits::new(4);
    let first = GOOD.lines().next().map_or(0, str::len);
    assert!(read(RouteLimits { line_bytes: first, ..limits }).is_ok(), "the limit is inclusive");
    let short = read(RouteLimits { line_bytes: first - 1, ..limits });
    assert_eq!(
        short.expect_err("too long"),
        format!("routes line 1: bytes exceeds the limit of {}", first - 1)
    );
    let few = read(RouteLimits { lines: 2, ..limits }).expect_err("too many lines");
    assert_eq!(few, "routes line 3: lines exceeds the limit of 2");
    let rows = read(RouteLimits { rows: 1, ..limits }).expect_err("too many rows");
    assert_eq!(rows, "routes line 1: rows exceeds the limit of 1");
}
