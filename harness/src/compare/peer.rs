//! The other side of a comparison: another engine's own step timer, started as data says.
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;

use super::StepRule;

/// The peers this build knows: name, description, script.
const KNOWN: [(&str, &str, &str); 1] = [(
    "llama_cpp",
    include_str!("../../peers/llama_cpp.toml"),
    include_str!("../../peers/step_llama_cpp.py"),
)];

/// Most bytes of a peer's output.
const OUTPUT_LIMIT: u64 = 4 << 20;

/// What goes wrong with a peer.
#[derive(Debug, Error)]
pub enum PeerError {
    /// No such peer.
    #[error("no peer is called '{name}', known: {known}")]
    Unknown {
        /// Asked for.
        name: String,
        /// Known names.
        known: String,
    },
    /// Its description.
    #[error("peer {name}: {reason}")]
    Description {
        /// Peer.
        name: String,
        /// Why.
        reason: String,
    },
    /// It could not be started or read.
    #[error("running {program}: {source}")]
    Start {
        /// Program.
        program: String,
        /// Cause.
        source: std::io::Error,
    },
    /// It ended badly or said nothing usable.
    #[error("{program}: {reason}")]
    Failed {
        /// Program.
        program: String,
        /// Why.
        reason: String,
    },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    name: String,
    script: String,
    command: Vec<String>,
}

/// A peer that can be started.
pub struct Peer {
    description: Description,
    script: PathBuf,
    bin: PathBuf,
    folder: tempfile::TempDir,
}

/// What a peer's run printed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerRun {
    /// Engine.
    pub engine: String,
    /// Version.
    pub version: String,
    /// Build line: the instruction sets it was compiled with and uses.
    pub build: String,
    /// Step times in nanoseconds, in order.
    pub series_ns: Vec<u64>,
}

impl Peer {
    /// A known peer, run by `bin`. Its script is written to a temporary folder.
    pub fn known(name: &str, bin: &Path) -> Result<Self, PeerError> {
        let bad = |reason: String| PeerError::Description { name: name.into(), reason };
        let Some((_, toml, script)) = KNOWN.iter().find(|k| k.0 == name) else {
            let known = KNOWN.map(|k| k.0).join(", ");
            return Err(PeerError::Unknown { name: name.into(), known });
        };
        let description: Description = toml::from_str(toml).map_err(|e| bad(e.to_string()))?;
        let folder = tempfile::tempdir().map_err(|e| bad(e.to_string()))?;
        let path = folder.path().join(&description.script);
        std::fs::write(&path, script).map_err(|e| bad(e.to_string()))?;
        Ok(Self { description, script: path, bin: bin.into(), folder })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.description.name
    }

    /// Runs it once, for at most `limit`.
    pub fn run(
        &self,
        model: &Path,
        threads: usize,
        rule: &StepRule,
        limit: Duration,
    ) -> Result<PeerRun, PeerError> {
        let fill = |word: &String| {
            word.replace("{bin}", &self.bin.to_string_lossy())
                .replace("{script}", &self.script.to_string_lossy())
                .replace("{model}", &model.to_string_lossy())
                .replace("{threads}", &threads.to_string())
                .replace("{batch}", &rule.batch.to_string())
                .replace("{warmup}", &rule.warmup.to_string())
                .replace("{steps}", &rule.steps.to_string())
        };
        let words: Vec<String> = self.description.command.iter().map(fill).collect();
        let failed = |reason: String| PeerError::Failed { program: self.bin.display().to_string(), reason };
        let Some((program, arguments)) = words.split_first() else {
            return Err(failed("its description has an empty command".into()));
        };
        let text = run_limited(program, arguments, self.folder.path(), limit)?;
        let line = text.lines().last().unwrap_or_default();
        let run: PeerRun = serde_json::from_str(line)
            .map_err(|e| failed(format!("its last line is no result ({e}): {}", clip(line))))?;
        if run.series_ns.len() != rule.steps {
            let have = run.series_ns.len();
            return Err(failed(format!("{have} step times, {} were asked for", rule.steps)));
        }
        Ok(run)
    }
}

fn clip(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Standard output of a program that must end well within `limit`; its errors go to a file, the end of which is
/// told when it fails.
fn run_limited(
    program: &str,
    arguments: &[String],
    folder: &Path,
    limit: Duration,
) -> Result<String, PeerError> {
    let start = |source| PeerError::Start { program: program.into(), source };
    let failed = |reason: String| PeerError::Failed { program: program.into(), reason };
    let (out, log) = (folder.join("stdout"), folder.join("stderr"));
    let file = |path: &Path| std::fs::File::create(path).map_err(start);
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file(&out)?)
        .stderr(file(&log)?)
        .spawn()
        .map_err(start)?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(start)? {
            break status;
        }
        if begin.elapsed() > limit {
            // It may have ended in between: either way it is waited for and reported as too slow.
            drop(child.kill());
            drop(child.wait());
            return Err(failed(format!("did not end within {} s", limit.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let read = |path: &Path| -> Result<String, PeerError> {
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(start)?;
        file.take(OUTPUT_LIMIT).read_to_end(&mut bytes).map_err(start)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if !status.success() {
        let log = read(&log)?;
        let last = log.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message");
        return Err(failed(format!("{status}: {}", clip(last))));
    }
    read(&out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const RULE: StepRule = StepRule { batch: 2, warmup: 1, steps: 3 };

    /// A peer whose program is a shell script that gets the words of the command.
    fn fake(body: &str) -> (tempfile::TempDir, Peer) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fake");
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let peer = Peer::known("llama_cpp", &path).unwrap();
        (dir, peer)
    }

    fn run(body: &str, limit: Duration) -> Result<PeerRun, PeerError> {
        let (_dir, peer) = fake(body);
        peer.run(Path::new("m.gguf"), 2, &RULE, limit)
    }

    #[test]
    fn the_last_line_is_the_result_and_the_command_is_filled_in() {
        let body = r#"test "$2 $3 $4 $5 $6" = "m.gguf 2 2 1 3" || exit 3
echo noise; echo '{"engine":"e","version":"v","build":"b","series_ns":[3,1,2]}'"#;
        let done = run(body, Duration::from_secs(20)).unwrap();
        assert_eq!((done.engine.as_str(), done.series_ns), ("e", vec![3, 1, 2]));
    }

    #[test]
    fn a_peer_that_fails_lies_or_hangs_is_an_error_that_says_so() {
        let say = |body: &str, ms| run(body, Duration::from_millis(ms)).unwrap_err().to_string();
        assert!(say("echo broken >&2; exit 4", 20_000).contains("broken"));
        assert!(say("echo hello", 20_000).contains("no result"));
        let short = r#"echo '{"engine":"e","version":"v","build":"b","series_ns":[3]}'"#;
        assert!(say(short, 20_000).contains("1 step times, 3 were asked for"));
        assert!(say("exec sleep 30", 100).contains("did not end within"));
        assert!(matches!(Peer::known("nobody", Path::new("x")), Err(PeerError::Unknown { .. })));
        let peer = Peer::known("llama_cpp", Path::new("/no/such/program")).unwrap();
        let none = peer.run(Path::new("m"), 1, &RULE, Duration::from_secs(1));
        assert!(matches!(none, Err(PeerError::Start { .. })));
    }
}
