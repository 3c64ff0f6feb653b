//! HTML: one self-contained page with the figures and the tables. No script, nothing loaded.
use super::table::{Cells, closing, kinds, steps, totals};
use super::{Report, ReportError, svg};
use crate::units::grouped;

const STYLE: &str = "body{font:14px/1.5 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:.5em 0 1.5em;font-variant-numeric:tabular-nums}\
th,td{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}\
th:first-child,td:first-child{text-align:left}tr:last-child td{font-weight:bold}\
figure{margin:1em 0 2em}figure svg{max-width:100%;height:auto}figcaption{color:#555}.wide{overflow-x:auto}";

/// The page. Figures that the report has no data for are left out.
pub fn page(report: &Report) -> Result<String, ReportError> {
    let title = escape(&format!("{} in {} on {}", report.model, report.recipe, report.device.name));
    let mut body = format!(
        "<h1>{title}</h1>\n<p>Weights of the pack: {} bytes ({}). Last cache: {}.</p>\n",
        grouped(report.weights.0),
        report.weights,
        report.device.last_cache
    );
    body += &format!("<h2>Steps</h2>\n<p>Floor by {}.</p>\n", report.rate_source());
    body += &html_table(&steps(report));
    let figures = [
        ("Bytes of a step by layer kind and class.", svg::bytes(report)),
        ("Step time against batch.", svg::time(report)),
        ("Measured parts against the measured step.", svg::closure(report)),
    ];
    for (caption, figure) in figures {
        match figure {
            Ok(svg) => {
                body +=
                    &format!("<figure>\n{svg}\n<figcaption>{}</figcaption>\n</figure>\n", escape(caption));
            }
            Err(ReportError::Nothing { .. }) => {}
            Err(other) => return Err(other),
        }
    }
    if let Some(closure) = &report.closure {
        body += &format!("<h2>Closure</h2>\n{}", html_table(&closing(closure)));
    }
    for (batch, ledger) in &report.ledgers {
        body += &format!(
            "<h2>Batch {batch}</h2>\n<p>{} launches, {} lines.</p>\n",
            ledger.launches,
            ledger.lines.len()
        );
        body += &html_table(&kinds(ledger));
        body += &html_table(&totals(ledger));
    }
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    ))
}

/// `text` as HTML character data, also safe inside quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

fn html_table(rows: &Cells) -> String {
    let mut out = String::from("<div class=\"wide\"><table>\n");
    for (i, row) in rows.iter().enumerate() {
        let tag = if i == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|c| format!("<{tag}>{}</{tag}>", escape(c))).collect();
        out += &format!("<tr>{cells}</tr>\n");
    }
    out + "</table></div>\n"
}
