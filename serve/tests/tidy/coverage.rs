//! Nothing in the tree is left uncompiled: every target file is built by CI.

use super::finding::Finding;

/// What the rule looks at: the tree's paths and a way to read them.
pub struct Tree<'a> {
    /// All tracked paths.
    pub paths: &'a [String],
    /// Text of a path.
    pub read: &'a dyn Fn(&str) -> Option<String>,
}

/// Kinds of targets and the command in `.ci/run` that compiles each.
const COMMANDS: [(&str, &str); 4] = [
    ("/tests/", "cargo test --workspace"),
    ("/benches/", "cargo build --workspace --benches"),
    ("/examples/", "--examples"),
    ("/fuzz/", "*/fuzz/Cargo.toml"),
];

/// Every test, bench, example, fuzz target and device source is reached by `.ci/run`.
pub fn uncompiled(tree: &Tree<'_>) -> Vec<Finding> {
    let script = (tree.read)(".ci/run").unwrap_or_default();
    let commands = script.lines().filter(|l| !l.trim_start().starts_with('#'));
    let ci = commands.collect::<Vec<_>>().join("\n");
    tree.paths
        .iter()
        .filter_map(|path| why_uncompiled(tree, &ci, path).map(|w| Finding::new(path, 0, w)))
        .collect()
}

fn why_uncompiled(tree: &Tree<'_>, ci: &str, path: &str) -> Option<String> {
    if path.ends_with(".cu") {
        return device_source(tree, ci, path);
    }
    let (room, kind, name) = target(path)?;
    let (_, command) = COMMANDS.iter().find(|(k, _)| *k == kind)?;
    if !ci.contains(command) {
        return Some(format!("`.ci/run` has no `{command}`"));
    }
    let manifest_path =
        if kind == "/fuzz/" { format!("{room}/fuzz/Cargo.toml") } else { format!("{room}/Cargo.toml") };
    let manifest = (tree.read)(&manifest_path).and_then(|t| t.parse::<toml::Table>().ok());
    let Some(manifest) = manifest else { return Some(format!("has no readable {manifest_path}")) };
    let declared = |table: &str, key: &str, value: &str| {
        let list = manifest.get(table).and_then(|t| t.as_array());
        list.is_some_and(|l| l.iter().any(|t| t.get(key).and_then(|v| v.as_str()) == Some(value)))
    };
    match kind {
        "/benches/" if !declared("bench", "name", &name) => {
            Some(format!("no `[[bench]] name = \"{name}\"` in {manifest_path}"))
        }
        "/fuzz/" if !declared("bin", "path", &format!("fuzz_targets/{name}.rs")) => {
            Some(format!("no `[[bin]]` with this path in {manifest_path}"))
        }
        "/tests/" | "/examples/" => {
            let switch = if kind == "/tests/" { "autotests" } else { "autoexamples" };
            let off =
                manifest.get("package").and_then(|p| p.get(switch)) == Some(&toml::Value::Boolean(false));
            off.then(|| format!("{switch} is off in {manifest_path}"))
        }
        _ => None,
    }
}

/// (room, kind, target name) of a target's main file.
fn target(path: &str) -> Option<(&str, &'static str, String)> {
    let (room, rest) = path.split_once('/')?;
    let (folder, file) = rest.split_once('/')?;
    let kind = match folder {
        "tests" => "/tests/",
        "benches" => "/benches/",
        "examples" => "/examples/",
        "fuzz" => "/fuzz/",
        _ => return None,
    };
    let file = if kind == "/fuzz/" { file.strip_prefix("fuzz_targets/")? } else { file };
    let name = file.strip_suffix("/main.rs").or_else(|| file.strip_suffix(".rs"))?;
    (!name.contains('/')).then(|| (room, kind, name.to_owned()))
}

/// A CUDA source is included by some Rust file and compiled through NVRTC.
fn device_source(tree: &Tree<'_>, ci: &str, path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let mut rust = tree.paths.iter().filter(|p| p.starts_with("kernels/") && p.ends_with(".rs"));
    let needle = format!("{file}\"");
    if !rust.any(|p| (tree.read)(p).is_some_and(|t| t.contains("include_str!") && t.contains(&needle))) {
        return Some("no Rust file of kernels/ includes it".into());
    }
    (!ci.contains("nvrtc")).then(|| "`.ci/run` has no nvrtc stage that compiles it".into())
}

#[cfg(test)]
mod rules {
    use super::*;

    const CI: &str =
        "cargo test --workspace\ncargo build --workspace --benches --examples\nfor f in */fuzz/Cargo.toml";

    fn find(ci: &str, files: &[(&str, &str)]) -> Vec<Finding> {
        let paths: Vec<String> = files.iter().map(|(p, _)| (*p).to_owned()).collect();
        let read = |path: &str| {
            let all = files.iter().copied().chain([(".ci/run", ci)]);
            all.into_iter().find(|(p, _)| *p == path).map(|(_, t)| t.to_owned())
        };
        uncompiled(&Tree { paths: &paths, read: &read })
    }

    #[test]
    fn an_undeclared_bench_is_found() {
        let bench = ("a/benches/speed.rs", "");
        let declared = "[package]\nname = \"a\"\n[[bench]]\nname = \"speed\"\nharness = false\n";
        assert!(find(CI, &[bench, ("a/Cargo.toml", declared)]).is_empty());
        assert_eq!(find(CI, &[bench, ("a/Cargo.toml", "[package]\nname = \"a\"\n")]).len(), 1);
        assert_eq!(find("cargo test --workspace", &[bench, ("a/Cargo.toml", declared)]).len(), 1);
    }

    #[test]
    fn an_undeclared_fuzz_target_is_found() {
        let target = ("a/fuzz/fuzz_targets/parse.rs", "");
        let declared = "[[bin]]\nname = \"parse\"\npath = \"fuzz_targets/parse.rs\"\n";
        assert!(find(CI, &[target, ("a/fuzz/Cargo.toml", declared)]).is_empty());
        assert_eq!(find(CI, &[target, ("a/fuzz/Cargo.toml", "")]).len(), 1);
        assert_eq!(find(CI, &[target]).len(), 1);
    }

    #[test]
    fn a_switched_off_test_or_example_is_found() {
        let off = "[package]\nname = \"a\"\nautotests = false\nautoexamples = false\n";
        let files = [
            ("a/tests/t.rs", ""),
            ("a/tests/t/part.rs", ""),
            ("a/examples/e/main.rs", ""),
            ("a/Cargo.toml", off),
        ];
        assert_eq!(find(CI, &files).len(), 2);
    }

    #[test]
    fn a_device_source_nobody_compiles_is_found() {
        let cu = ("kernels/src/op/op.cu", "");
        let rs = ("kernels/src/op/mod.rs", "const S: &str = include_str!(\"op.cu\");");
        assert_eq!(find(CI, &[cu]).len(), 1);
        assert_eq!(find(CI, &[cu, rs]).len(), 1);
        assert!(find(&format!("{CI}\nnvrtc"), &[cu, rs]).is_empty());
    }
}
