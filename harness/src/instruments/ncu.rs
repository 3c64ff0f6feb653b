//! Nsight Compute's counts: the bytes that each kernel and each graph really moved on the memory bus.
//!
//! The profiler runs this program as its child, counts what lies between two marks, and writes one CSV row a kernel
//! or graph. Only one pass is accepted: a replayed pass would count another state of the cache.
use std::path::Path;
use std::process::Command;
use thiserror::Error;

const READ: &str = "dram__bytes_read.sum";
const WRITE: &str = "dram__bytes_write.sum";

/// Bytes that one kernel, or one whole graph, moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Name of the kernel; a graph has a name without `(`.
    pub name: String,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub write: u64,
}

/// Why there are no counts.
#[derive(Debug, Error)]
pub enum NcuError {
    /// The profiler is not installed.
    #[error("counters: none ({0} cannot be started: {1})")]
    Absent(String, std::io::Error),
    /// The profiler or its child failed.
    #[error("counters: none (the profiler ended with {status}: {last})")]
    Failed {
        /// How it ended.
        status: String,
        /// The last line it said.
        last: String,
    },
    /// Its report cannot be used.
    #[error("counters: none ({0})")]
    Report(String),
}

/// Runs `program args..` under the profiler with its report in `report`.
///
/// # Errors
/// [`NcuError`].
pub fn run(report: &Path, program: &Path, args: &[String]) -> Result<Vec<Counted>, NcuError> {
    let ncu = std::env::var("SPARKPIPE_NCU").unwrap_or_else(|_| "ncu".into());
    let mut command = Command::new(&ncu);
    command.args(["--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off"]);
    command.args(["--graph-profiling", "graph", "--clock-control", "none", "--cache-control", "none"]);
    command.args(["--metrics", &format!("{READ},{WRITE}")]);
    command.arg("--log-file").arg(report).arg("-f").arg(program).args(args);
    let done = command.output().map_err(|e| NcuError::Absent(ncu, e))?;
    let text = std::fs::read_to_string(report).unwrap_or_default();
    if !done.status.success() {
        let said = [text.as_bytes(), &done.stdout, &done.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        let last = said.lines().rfind(|l| l.contains("rror")).or(said.lines().last()).unwrap_or("");
        return Err(NcuError::Failed { status: done.status.to_string(), last: last.trim().into() });
    }
    parse(&text)
}

/// Reads the profiler's report.
///
/// # Errors
/// [`NcuError::Report`] where a kernel took more than one pass, or a column is missing.
pub fn parse(text: &str) -> Result<Vec<Counted>, NcuError> {
    let bad = |what: String| NcuError::Report(what);
    if let Some(line) = text.lines().find(|l| l.contains(" passes") && !l.contains(" 1 pass")) {
        return Err(bad(format!("more than one pass: {}", line.trim())));
    }
    let start = text.lines().position(|l| l.starts_with("\"ID\""));
    let start = start.ok_or_else(|| bad("the report has no table".into()))?;
    let table: Vec<&str> = text.lines().skip(start).filter(|l| l.starts_with('"')).collect();
    let table = table.join("\n");
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(table.as_bytes());
    let head = reader.headers().map_err(|e| bad(e.to_string()))?.clone();
    let column =
        |name: &str| head.iter().position(|h| h == name).ok_or_else(|| bad(format!("no column '{name}'")));
    let (name, read, write) = (column("Kernel Name")?, column(READ)?, column(WRITE)?);
    let mut out = Vec::new();
    for row in reader.records() {
        let row = row.map_err(|e| bad(e.to_string()))?;
        // The first row holds units.
        if row.get(0).is_none_or(|id| id.is_empty()) {
            continue;
        }
        let bytes = |at: usize| {
            let text = row.get(at).unwrap_or("").replace(',', "");
            text.parse::<f64>().map(|v| v.round() as u64).map_err(|_| bad(format!("'{text}' is no count")))
        };
        let name = row.get(name).unwrap_or("").to_owned();
        out.push(Counted { name, read: bytes(read)?, write: bytes(write)? });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "==PROF== Connected to process 1
==PROF== Profiling \"k\" - 0: 0%....50%....100% - 1 pass
\"ID\",\"Process ID\",\"Kernel Name\",\"dram__bytes_read.sum\",\"dram__bytes_write.sum\"
\"\",\"\",\"\",\"byte\",\"byte\"
\"0\",\"1\",\"norm(float const*)\",\"1,024\",\"32\"
\"1\",\"1\",\"Graph:12\",\"4546760000\",\"266800000\"
";

    #[test]
    fn rows_units_and_thousands_are_read() {
        let rows = parse(REPORT).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].read, rows[0].write), (1024, 32));
        assert_eq!((rows[1].name.as_str(), rows[1].read), ("Graph:12", 4_546_760_000));
    }

    #[test]
    fn a_second_pass_and_a_missing_column_are_refused() {
        let two = REPORT.replace("- 1 pass", "- 3 passes");
        assert!(parse(&two).unwrap_err().to_string().contains("more than one pass"));
        let other = REPORT.replace("bytes_write", "bytes_wrote");
        assert!(parse(&other).unwrap_err().to_string().contains("dram__bytes_write.sum"));
        assert!(parse("").is_err());
    }
}
