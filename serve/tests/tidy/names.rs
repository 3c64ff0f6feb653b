//! Common rooms serve every model family and therefore name none of them.

use super::finding::Finding;

const FAMILIES: [&str; 9] =
    ["qwen", "glm", "deepseek", "kimi", "gemma", "mimo", "llama", "mistral", "minimax"];

/// Peers and formats that carry a family's name without being one.
const PEERS: [&str; 4] = ["llama.cpp", "llama-cpp", "llama_cpp", "llama-bench"];

/// Places where families are at home: their folder, data, fixtures, prose, and peers, whose own interface is named
/// after one.
const AT_HOME: [&str; 10] = [
    "harness/src/families/",
    "harness/builtin/",
    "harness/models/",
    "harness/oracles/",
    "harness/peers/",
    "harness/recipes/",
    "ledger/golden/",
    "receipts/retained/",
    "docs/",
    ".ci/",
];

/// Whether a path may name families. Tests may: they say which model they check.
pub fn may_name_families(path: &str) -> bool {
    let test = path.contains("/tests/") || path.contains("/golden/") || path.contains("/fixtures/");
    test || AT_HOME.iter().any(|p| path.starts_with(p))
        || ["README.md", "models.lock.toml", "Cargo.lock"].contains(&path)
}

/// Lines of a common file that name a family.
pub fn family_names(path: &str, text: &str) -> Vec<Finding> {
    if may_name_families(path) {
        return Vec::new();
    }
    // Line 0 is the file's own name.
    let lines = [path].into_iter().chain(text.lines()).enumerate();
    let hits = lines.filter_map(|(line, text)| named(text).map(|family| (line, family)));
    hits.map(|(line, f)| Finding::new(path, line, format!("names the family `{f}` in a common room")))
        .collect()
}

fn named(line: &str) -> Option<&'static str> {
    let mut lower = line.to_lowercase();
    for peer in PEERS {
        lower = lower.replace(peer, "");
    }
    FAMILIES.into_iter().find(|family| match *family {
        // `GemmArgs` is a matrix product, `GemmaConfig` is not.
        "gemma" => camel_words(line).iter().any(|w| w.to_lowercase().starts_with(family)),
        "glm" => camel_words(line).iter().any(|w| w.to_lowercase().starts_with(family)),
        _ => lower.contains(family),
    })
}

/// Splits at non-alphanumerics and where a lower-case letter meets an upper-case one.
fn camel_words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for c in line.chars() {
        if !c.is_alphanumeric() || (before.is_lowercase() && c.is_uppercase()) {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("starts with one word").push(c);
        }
        before = c;
    }
    words
}

#[cfg(test)]
mod rules {
    use super::*;

    #[test]
    fn a_family_in_a_common_room_is_found() {
        for bad in ["struct DeepSeekV4;", "// like Qwen3", "\"glm5_2\" =>", "GemmaConfig", "arch llama"] {
            assert_eq!(family_names("harness/src/engine/step.rs", bad).len(), 1, "{bad}");
            assert!(family_names("harness/src/families/x/mod.rs", bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn a_file_named_after_a_family_is_found() {
        assert_eq!(family_names("kernels/src/kimi_delta/mod.rs", "").len(), 1);
    }

    #[test]
    fn peers_and_matrix_products_are_no_families() {
        for good in
            ["struct GemmArgs;", "GemmAccount", "// as llama.cpp does", "pip install llama-cpp-python"]
        {
            assert!(family_names("kernels/src/gemm/mod.rs", good).is_empty(), "{good}");
        }
    }

    #[test]
    fn only_data_tests_and_prose_are_exempt() {
        assert!(may_name_families("ledger/golden/qwen3_6_27b.b1.csv"));
        assert!(may_name_families("harness/tests/oracle.rs"));
        assert!(!may_name_families("serve/src/main.rs"));
        assert!(!may_name_families("harness/src/models/mod.rs"));
    }
}
