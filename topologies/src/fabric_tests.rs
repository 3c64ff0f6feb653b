//! The built-in files, and hostile ones.

use super::*;
use proptest::prelude::*;

const FABRICS: [&str; 3] = ["ring_debug_single_rail", "single_switch_single_rail", "dual_switch_dual_rail"];

fn broken(name: &str, from: &str, to: &str) -> String {
    let text = Topology::builtin_text(name).unwrap();
    assert!(text.contains(from), "{name} has no {from:?}");
    Topology::parse("edited", &text.replace(from, to)).unwrap_err().to_string()
}

#[test]
fn every_fabric_validates_for_2_to_16_nodes() {
    for name in FABRICS {
        let fabric = Topology::builtin(name).unwrap();
        for nodes in 0..=20 {
            assert_eq!(fabric.validate(nodes).is_ok(), (2..=16).contains(&nodes), "{name} {nodes}");
        }
        let node = fabric.node().unwrap();
        assert_eq!((node.ports, node.ports_used), (2, 1), "{name}");
    }
    let single = Topology::builtin("single").unwrap();
    assert!(single.validate(1).is_ok());
    assert!(single.validate(2).unwrap_err().to_string().contains("must be 1 to 1"));
}

#[test]
fn totals_are_computed() {
    for name in FABRICS {
        let all = Topology::builtin(name).unwrap().aggregates(16).unwrap();
        assert_eq!(all.memory_bytes, 2_048_000_000_000, "2 TB");
        assert_eq!(all.bandwidth_bytes_per_second, 4_368_000_000_000, "4.37 TB/s");
        assert_eq!(all.network_bits_per_second, 1_600_000_000_000);
        let text = Topology::builtin_text(name).unwrap().replace('_', "");
        assert!(!text.contains("2048000000000") && !text.contains("4368000000000"), "typed in {name}");
    }
    assert!(matches!(Topology::builtin("single").unwrap().aggregates(1), Err(TopologyError::NoNode { .. })));
}

#[test]
fn one_node_runs_and_what_has_no_code_is_refused_with_what_it_needs() {
    assert_eq!(Topology::builtin("single").unwrap().runnable(), Ok(()));
    for (name, transport) in
        [("ring_debug_single_rail", "tcp_ring"), ("single_switch_single_rail", "rdma_switch")]
    {
        let refusal = Topology::builtin(name).unwrap().runnable().unwrap_err().to_string();
        assert!(refusal.contains(&format!("{transport} has no implementation in this build")), "{refusal}");
    }
    let refusal = Topology::builtin("dual_switch_dual_rail").unwrap().runnable().unwrap_err();
    let text = refusal.to_string();
    for part in [
        "rail b has no implementation",
        "correctness of rdma_switch on single_switch_single_rail",
        "performance of rdma_switch on single_switch_single_rail",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// No edit of a file makes two rails run.
#[test]
fn claiming_an_implementation_does_not_add_one() {
    let text = Topology::builtin_text("dual_switch_dual_rail").unwrap();
    let claimed =
        text.replace("implemented = false", "implemented = true").replace("ports_used = 1", "ports_used = 2");
    let refusal = Topology::parse("claimed", &claimed).unwrap().runnable().unwrap_err();
    assert!(refusal.to_string().contains("striping over a second rail"), "{refusal}");
}

#[test]
fn the_hash_is_of_the_bytes() {
    let text = Topology::builtin_text("single").unwrap();
    let base = Topology::parse("a", text).unwrap();
    assert_eq!(base.hash(), blake3::hash(text.as_bytes()).to_hex().as_str());
    assert_eq!(base.hash(), Topology::parse("b", text).unwrap().hash());
    assert_ne!(base.hash(), Topology::parse("a", &format!("{text}\n")).unwrap().hash());
}

#[test]
fn unknown_keys_are_errors_at_every_level() {
    let name = "dual_switch_dual_rail";
    for (at, extra) in [
        ("schema = 1", "schema = 1\nforce = true"),
        ("max = 16", "max = 16\nspare = 1"),
        ("ports_used = 1", "ports_used = 1\nwatts = 1"),
        ("vendor = \"MikroTik\"", "vendor = \"MikroTik\"\nvlan = 3"),
        ("implemented = false", "implemented = false\ntested = true"),
        ("proves = \"correctness\"", "proves = \"correctness\"\nwaived = true"),
    ] {
        let err = broken(name, at, extra);
        assert!(err.contains("edited") && err.contains("unknown field"), "{err}");
    }
}

#[test]
fn each_value_outside_its_limit_names_file_field_value_and_limit() {
    let cases = [
        ("schema = 1", "schema = 2", "field `schema` is 2: must be 1 to 1"),
        ("min = 2", "min = 0", "`nodes.min` is 0: must be 1 to 16"),
        ("max = 16", "max = 17", "`nodes.max` is 17: must be 2 to 16"),
        ("max = 16", "max = 1", "`nodes.max` is 1"),
        ("128_000_000_000", "0", "`node.memory_bytes` is 0"),
        ("128_000_000_000", "9_223_372_036_854_775_807", "`node.memory_bytes` is 9223372036854775807"),
        ("273_000_000_000", "1", "`node.bandwidth_bytes_per_second` is 1"),
        ("ports_used = 1", "ports_used = 2", "`node.ports_used` is 2"),
        ("ports = 16", "ports = 8", "`switch.0.ports` is 8: must be 16"),
        ("switch = \"left\"", "switch = \"up\"", "`rail.0.switch` is \"up\": must be one of [\"left\"]"),
        ("switch = \"left\"\n", "", "`rail.0.switch` is absent"),
        ("transport = \"rdma_switch\"", "transport = \"dual_rail\"", "`rail (entries)` is 1: must be 2"),
        ("transport = \"rdma_switch\"", "transport = \"local\"", "`rail (entries)` is 1: must be 0"),
        ("device = \"gb10\"", "device = \"\"", "`node.device` is \"\""),
        ("device = \"gb10\"", "device = \"a\\u001bb\"", "`node.device`"),
    ];
    for (from, to, expected) in cases {
        let err = broken("single_switch_single_rail", from, to);
        assert!(err.starts_with("topology edited: ") && err.contains(expected), "{err}");
    }
    let err = broken("dual_switch_dual_rail", "switch = \"right\"", "switch = \"left\"");
    assert!(err.contains("`rail.1.switch`"), "{err}");
    let err = broken("dual_switch_dual_rail", "name = \"right\"", "name = \"left\"");
    assert!(err.contains("`switch.1.name`"), "{err}");
}

#[test]
fn hostile_text_is_a_typed_error() {
    let long = " ".repeat(MAX_FILE + 1);
    let deep = format!("schema = {}", "[".repeat(10_000));
    let many = format!(
        "{}\n{}",
        Topology::builtin_text("single").unwrap(),
        "[[rail]]\nname='r'\nimplemented=true\n".repeat(99)
    );
    for text in ["", "schema", "schema = 1", "[[nodes]]", "\u{0}", "schema = -1", &long, &deep, &many] {
        assert!(Topology::parse("hostile", text).is_err(), "{:.40}", text);
    }
    assert!(broken("single", "schema = 1", "schema = -1").contains("line"));
    let err = Topology::builtin("nine_switches").unwrap_err().to_string();
    assert!(err.contains("ring_debug_single_rail"), "{err}");
}

#[test]
fn placement_uses_the_node_of_the_file() {
    let fabric = Topology::builtin("single_switch_single_rail").unwrap();
    let layer = 30_000_000_000;
    let placed = fabric.place(&[layer; 16], 4).unwrap();
    assert!(placed.stages.iter().all(|s| s.layers == 4 && s.bytes == 4 * layer));
    let err = fabric.place(&[layer; 16], 3).unwrap_err().to_string();
    assert!(err.contains("= 180000000000 B > 128000000000 B of the node"), "{err}");
    assert!(matches!(fabric.place(&[layer; 40], 17), Err(TopologyError::Nodes { .. })));
}

proptest! {
    #[test]
    fn any_text_gives_a_topology_or_an_error(text in ".{0,200}") {
        let _ = Topology::parse("any", &text).map(|t| t.runnable());
    }

    /// A file with one byte replaced parses or fails, and what parses still keeps its promises.
    #[test]
    fn a_mutated_file_is_consistent_or_refused(which in 0usize..4, at in 0usize..2000, byte in 32u8..127) {
        let mut bytes = BUILTIN_TEXT[which].as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        // Printable bytes only: the text stays UTF-8 except where a multi-byte character was cut.
        let parsed = String::from_utf8(bytes).ok().and_then(|text| Topology::parse("mutated", &text).ok());
        if let Some(topology) = parsed {
            let (min, max) = topology.node_range();
            prop_assert!(1 <= min && min <= max && max <= MAX_NODES);
            prop_assert!(topology.node().is_none() || topology.aggregates(max).is_ok());
            prop_assert!(topology.transport() != Transport::DualRail || topology.runnable().is_err());
        }
    }
}
