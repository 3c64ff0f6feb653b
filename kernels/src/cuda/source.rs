//! The headers that CUDA sources include by name.

/// Name and text of every header. A new `.cuh` file gets a line here.
pub const HEADERS: &[(&str, &str)] = &[
    ("common.cuh", include_str!("common.cuh")),
    ("mma_tile.cuh", include_str!("mma_tile.cuh")),
    ("rowops.cuh", include_str!("rowops.cuh")),
    ("attend.cuh", include_str!("../attend/attend.cuh")),
    ("weights.cuh", include_str!("weights.cuh")),
];

/// The headers that `text` includes, directly and through other headers, each once.
pub fn headers_of(text: &str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&'static str, &'static str)> = Vec::new();
    let mut texts: Vec<&str> = vec![text];
    while let Some(text) = texts.pop() {
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("#include \"") else { continue };
            let Some((name, _)) = rest.split_once('"') else { continue };
            if found.iter().any(|(n, _)| *n == name) {
                continue;
            }
            if let Some(header) = HEADERS.iter().find(|(n, _)| *n == name) {
                found.push(*header);
                texts.push(header.1);
            }
        }
    }
    found.sort_unstable();
    found
}
