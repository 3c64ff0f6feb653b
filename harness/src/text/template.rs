//! Chat templates. One idea: a template is an untrusted program, so it runs with fuel, a recursion limit and a bounded
//! source and output; what it raises reaches the caller word for word.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value, syntax::SyntaxConfig};
use serde::Serialize;
use serde_json::{Map, Value as Json};
use thiserror::Error as ThisError;

/// Longest template source: 1 MiB.
pub const SOURCE_LIMIT: usize = 1 << 20;
/// Longest rendering: 16 MiB, above any context in tokens.
pub const OUTPUT_LIMIT: usize = 16 << 20;
/// Instructions that one rendering may run.
pub const FUEL: u64 = 20_000_000;
/// Deepest recursion of macros and includes.
pub const RECURSION_LIMIT: usize = 64;

/// Why a chat could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template itself refused the messages; its own words.
    #[error("{0}")]
    Raised(String),
    /// The template is no template.
    #[error("chat template does not parse: {0}")]
    Syntax(String),
    /// It failed while running.
    #[error("chat template failed: {0}")]
    Failed(String),
    /// It ran out of its instruction budget.
    #[error("chat template ran more than {FUEL} instructions")]
    OutOfFuel,
    /// It wrote more than a prompt can hold.
    #[error("chat template wrote more than {OUTPUT_LIMIT} bytes")]
    TooMuch,
    /// The source is too long.
    #[error("chat template is {0} bytes long; limit {SOURCE_LIMIT}")]
    TooLong(usize),
}

/// One turn. `extra` holds what else a template may read (`tool_calls`, `reasoning_content`, `name`, ...).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`.
    pub role: String,
    /// The text, rendered verbatim.
    pub content: String,
    /// Other fields.
    #[serde(flatten)]
    pub extra: Map<String, Json>,
}

impl Message {
    /// A plain turn.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Message {
        Message { role: role.to_owned(), content: content.to_owned(), extra: Map::new() }
    }
}

/// What `raise_exception` carries through the engine.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

/// A compiled template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    globals: Map<String, Json>,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > SOURCE_LIMIT {
            return Err(TemplateError::TooLong(source.len()));
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| TemplateError::Syntax(e.to_string()))?);
        env.set_fuel(Some(FUEL));
        env.set_recursion_limit(RECURSION_LIMIT);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
        });
        env.add_function("strftime_now", |format: String| strftime(&format, now()));
        env.add_filter("tojson", to_json);
        let stripped = strip_generation(source);
        env.add_template_owned("chat", stripped).map_err(|e| TemplateError::Syntax(describe(&e)))?;
        Ok(ChatTemplate { env, source: source.to_owned(), globals: Map::new() })
    }

    /// Sets a variable for all renderings, such as `bos_token`.
    #[must_use]
    pub fn with_global(mut self, name: &str, value: Json) -> ChatTemplate {
        self.globals.insert(name.to_owned(), value);
        self
    }

    /// The source as it was given.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a chat. `extra` adds variables (`tools`, `enable_thinking`); `null` ones are left out, because templates
    /// ask for their length.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        extra: Option<&Map<String, Json>>,
    ) -> Result<String, TemplateError> {
        let mut context = self.globals.clone();
        for (name, value) in extra.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            context.insert(name.clone(), value.clone());
        }
        let failed = |e: &dyn std::fmt::Display| TemplateError::Failed(e.to_string());
        context.insert("messages".into(), serde_json::to_value(messages).map_err(|e| failed(&e))?);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let template = self.env.get_template("chat").map_err(|e| failed(&e))?;
        let mut out = Bounded { bytes: Vec::new(), full: false };
        let rendered = template.render_captured_to(Value::from(Serde(&context)), &mut out).map(|_| ());
        if out.full {
            return Err(TemplateError::TooMuch);
        }
        rendered.map_err(|e| classify(&e))?;
        String::from_utf8(out.bytes).map_err(|e| failed(&e))
    }
}

/// Takes up to [`OUTPUT_LIMIT`] bytes and no more.
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.full |= self.bytes.len() + bytes.len() > OUTPUT_LIMIT;
        if self.full {
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn classify(error: &Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return TemplateError::Raised(message.clone());
        }
        source = cause.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::OutOfFuel,
        _ => TemplateError::Failed(describe(error)),
    }
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or(detail.clone(), |line| format!("{detail} (line {line})"))
}

/// `{% generation %}` marks a region for training only; an always-true `if` keeps its whitespace control.
fn strip_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&format!("{{%{}%}}", inner.replace("generation", "if true"))),
            "endgeneration" => out.push_str(&format!("{{%{}%}}", inner.replace("endgeneration", "endif"))),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out + rest
}

/// JSON as the templates' authors saw it: Python's `json.dumps(..., ensure_ascii=False)`, nothing escaped for HTML.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let wrong = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let indent: Option<usize> = options.get("indent")?;
    // Accepted because templates pass them; their effect is what we do anyway.
    let _: (Option<bool>, Option<bool>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(wrong)?;
    if let Some(width) = indent {
        let mut out = Vec::new();
        let blanks = vec![b' '; width.min(16)];
        let style = serde_json::ser::PrettyFormatter::with_indent(&blanks);
        json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(wrong)?;
        return String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()));
    }
    let mut out = String::new();
    dump(&json, &mut out);
    Ok(out)
}

fn dump(value: &Json, out: &mut String) {
    match value {
        Json::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                dump(item, out);
            }
            out.push(']');
        }
        Json::Object(map) => {
            out.push('{');
            for (at, (key, item)) in map.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                let _ = write!(out, "{}: ", Json::from(key.as_str()));
                dump(item, out);
            }
            out.push('}');
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The subset of `strftime` that chat templates use, in UTC. An unknown conversion is kept as it stands.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let days = seconds / 86_400;
    // Civil date of a day number (Hinnant's algorithm, years from March).
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (name, weekday) = (MONTHS[month as usize - 1], DAYS[(days % 7) as usize]);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let _ = match chars.next() {
            Some('Y') => write!(out, "{year}"),
            Some('m') => write!(out, "{month:02}"),
            Some('d') => write!(out, "{day:02}"),
            Some('B') => write!(out, "{name}"),
            Some('b') => write!(out, "{}", &name[..3]),
            Some('A') => write!(out, "{weekday}"),
            Some('a') => write!(out, "{}", &weekday[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('%') | None => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: &str = "{%- for m in messages -%}{%- if m.role != ['user','assistant'][loop.index0 % 2] -%}\
        {{ raise_exception('roles must alternate') }}{%- endif -%}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\
        {%- endfor -%}{% if add_generation_prompt %}<assistant>{% endif %}";

    #[test]
    fn hostile_contents_are_rendered_verbatim() {
        let template = ChatTemplate::new(STRICT).unwrap();
        let bait = "${TMPDIR:-x} {{ 7 * 7 }} {% raw %} \0 \u{2028} <&> \"'".repeat(400);
        let text = template.render(&[Message::new("user", &bait)], true, None).unwrap();
        assert!(bait.len() > 14_000);
        assert_eq!(text, format!("<user>{bait}</user><assistant>"));
    }

    #[test]
    fn output_is_bounded_by_bytes_and_not_by_instructions_alone() {
        let long = "x".repeat(1 << 20);
        let template =
            ChatTemplate::new("{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}").unwrap();
        let error = template.render(&[Message::new("user", &long)], true, None).unwrap_err();
        assert_eq!(error, TemplateError::TooMuch);
        let once = ChatTemplate::new("{{ messages[0].content }}").unwrap();
        assert_eq!(once.render(&[Message::new("user", &long)], true, None).unwrap(), long);
    }

    #[test]
    fn what_a_template_raises_reaches_the_caller_word_for_word() {
        let template = ChatTemplate::new(STRICT).unwrap();
        let twice = [Message::new("user", "a"), Message::new("user", "b")];
        let error = template.render(&twice, true, None).unwrap_err();
        assert_eq!(error, TemplateError::Raised("roles must alternate".into()));
        let system = [Message::new("user", "a"), Message::new("system", "b")];
        assert_eq!(template.render(&system, true, None).unwrap_err().to_string(), "roles must alternate");
    }

    #[test]
    fn an_endless_template_runs_out_of_fuel_and_a_broken_one_says_where() {
        let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
        let error = ChatTemplate::new(endless).unwrap().render(&[], false, None).unwrap_err();
        assert_eq!(error, TemplateError::OutOfFuel);
        assert!(matches!(ChatTemplate::new("{% if %}"), Err(TemplateError::Syntax(_))));
        assert!(matches!(ChatTemplate::new(&"x".repeat(SOURCE_LIMIT + 1)), Err(TemplateError::TooLong(_))));
    }

    #[test]
    fn generation_marks_extras_and_python_json() {
        let source = "{%- generation -%} {{ tools | tojson }} {%- endgeneration -%}{{ enable_thinking }}";
        let template = ChatTemplate::new(source).unwrap();
        let extra =
            serde_json::json!({ "tools": [{"a": "<é>", "b": 1}], "enable_thinking": false, "x": null });
        let text = template.render(&[], false, extra.as_object()).unwrap();
        assert_eq!(text, "[{\"a\": \"<é>\", \"b\": 1}]False".to_owned());
        let absent = ChatTemplate::new("{% if tools %}yes{% else %}no{% endif %}").unwrap();
        let nothing = serde_json::json!({ "tools": null });
        assert_eq!(absent.render(&[], false, nothing.as_object()).unwrap(), "no");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S %A", 0), "1970-01-01 00:00:00 Thursday");
        assert_eq!(strftime("%d %b %Y %a", 951_782_400), "29 Feb 2000 Tue");
        assert_eq!(strftime("%B %d%%%q", 1_796_083_199), "November 30%%q");
    }
}
