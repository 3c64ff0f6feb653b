//! `/metrics` in the Prometheus text format, from atomics alone.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::routes::RouteCounts;
use crate::scheduler::{BOUNDS_S, Handle, Histogram};

/// Requests by route and status; both come from fixed sets, so it is bounded.
#[derive(Debug, Default)]
pub struct HttpCounts(Mutex<BTreeMap<(&'static str, u16), u64>>);

impl HttpCounts {
    /// Counts one answered request.
    pub fn add(&self, route: &'static str, status: u16) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((route, status)).or_insert(0) += 1;
    }
}

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP sparkpipe_{name} {help}\n# TYPE sparkpipe_{name} {kind}");
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    family(out, name, kind, help);
    let _ = writeln!(out, "sparkpipe_{name} {value}");
}

fn histogram(out: &mut String, name: &str, help: &str, values: &Histogram) {
    family(out, name, "histogram", help);
    let (counts, sum) = values.snapshot();
    for (bound, count) in BOUNDS_S.iter().zip(&counts) {
        let _ = writeln!(out, "sparkpipe_{name}_bucket{{le=\"{bound}\"}} {count}");
    }
    let all = counts.last().copied().unwrap_or(0);
    let _ = writeln!(out, "sparkpipe_{name}_bucket{{le=\"+Inf\"}} {all}");
    let _ = writeln!(out, "sparkpipe_{name}_sum {sum}\nsparkpipe_{name}_count {all}");
}

fn recorded(out: &mut String, routes: &RouteCounts) {
    for (name, help, value) in [
        ("route_steps_recorded_total", "Steps whose expert routes are on disk.", &routes.recorded),
        ("route_steps_dropped_total", "Steps not recorded: slow disk or full file.", &routes.dropped),
        ("route_write_errors_total", "Steps lost to an error of the file system.", &routes.errors),
    ] {
        single(out, name, "counter", help, value.load(Relaxed) as f64);
    }
}

/// Renders everything that the scheduler and the gateway count.
pub fn render(handle: &Handle, http: &HttpCounts, routes: Option<&RouteCounts>) -> String {
    let status = handle.status();
    let mut out = String::with_capacity(8192);
    family(&mut out, "http_requests_total", "counter", "Requests answered, by route and status.");
    for ((route, code), count) in http.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        let _ = writeln!(out, "sparkpipe_http_requests_total{{route=\"{route}\",status=\"{code}\"}} {count}");
    }
    let counters = [
        ("requests_done_total", "Generations that completed.", &status.done),
        ("requests_cancelled_total", "Generations whose client left.", &status.cancelled),
        ("requests_failed_total", "Generations that failed.", &status.failed),
        ("requests_refused_total", "Generations refused because every seat was taken.", &status.refused),
        ("prompt_tokens_total", "Prompt tokens of admitted generations.", &status.prompt_tokens),
        ("completion_tokens_total", "Tokens sampled.", &status.sampled_tokens),
        ("prefill_chunks_total", "Prefill chunks run.", &status.chunks),
        ("steps_total", "Decode steps run.", &status.steps),
        ("preemptions_total", "Times a row made room for a waiting generation.", &status.preemptions),
        ("step_rows_total", "Rows of all decode steps.", &status.step_rows),
    ];
    for (name, help, value) in counters {
        single(&mut out, name, "counter", help, value.load(Relaxed) as f64);
    }
    if let Some(routes) = routes {
        recorded(&mut out, routes);
    }
    let limits = handle.limits();
    let gauges = [
        ("queue_depth", "Generations waiting for a row.", status.waiting.load(Relaxed)),
        ("paused_rows", "Generations saved between two turns.", status.paused.load(Relaxed)),
        ("active_rows", "Sequences resident in the engine.", status.active.load(Relaxed)),
        ("peak_step_rows", "Most rows of any one step.", status.peak_rows.load(Relaxed)),
        ("max_batch", "Rows that the receipt allows.", limits.max_batch),
        ("max_context", "Tokens a sequence that the receipt allows.", limits.max_context),
        ("seats_free", "Places left, rows and queue together.", handle.free_seats()),
    ];
    for (name, help, value) in gauges {
        single(&mut out, name, "gauge", help, value as f64);
    }
    let up = f64::from(u8::from(status.life().is_running()));
    single(&mut out, "engine_up", "gauge", "1 while the engine thread makes progress.", up);
    let beat = status.phase().1.as_secs_f64();
    single(&mut out, "engine_beat_age_seconds", "gauge", "Age of the engine thread's last stamp.", beat);
    histogram(&mut out, "step_seconds", "Time of a decode step.", &status.step_seconds);
    let help = "Time from acceptance to the first token.";
    histogram(&mut out, "first_token_seconds", help, &status.first_token_seconds);
    out
}
