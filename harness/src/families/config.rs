//! Reading geometry: every field is named, unknown values and missing fields are errors, nothing is guessed.
use crate::containers::Metadata;
use serde_json::Value as Json;
use thiserror::Error;

/// A geometry that cannot be read.
#[derive(Debug, Error, PartialEq)]
pub enum GeometryError {
    /// A field is absent.
    #[error("the configuration lacks the field '{field}'")]
    Missing {
        /// Field.
        field: String,
    },
    /// A field has the wrong type or a value outside its range.
    #[error("field '{field}' is {value}, expected {expected}")]
    Invalid {
        /// Field.
        field: String,
        /// Value found.
        value: String,
        /// What it must be.
        expected: String,
    },
    /// No family claims the model.
    #[error("{field} '{value}' belongs to no known family")]
    UnknownFamily {
        /// Field.
        field: &'static str,
        /// Value.
        value: String,
    },
    /// The family has no form in this container.
    #[error("family '{family}' has no {container} form here")]
    Container {
        /// Family.
        family: &'static str,
        /// Container.
        container: &'static str,
    },
}

fn invalid(field: &str, value: &Json, expected: impl Into<String>) -> GeometryError {
    // Characters, not bytes: a cut inside one of several bytes is a panic.
    let value = value.to_string().chars().take(80).collect();
    GeometryError::Invalid { field: field.into(), value, expected: expected.into() }
}

/// Refuses sizes outside 1 to 2^21, whatever the geometry was read from.
pub fn check_sizes(sizes: &[(&str, usize)]) -> Result<(), GeometryError> {
    match sizes.iter().find(|(_, size)| !(1..=MAX_FIELD).contains(&(*size as u64))) {
        None => Ok(()),
        Some((field, size)) => Err(invalid(field, &Json::from(*size), format!("from 1 to {MAX_FIELD}"))),
    }
}

/// Refuses numbers that are not positive and finite in f32, the type steps compute in.
pub fn check_numbers(numbers: &[(&str, f64)]) -> Result<(), GeometryError> {
    let fits = |x: f64| x as f32 > 0.0 && (x as f32).is_finite();
    match numbers.iter().find(|(_, x)| !fits(*x)) {
        None => Ok(()),
        Some((field, x)) => Err(invalid(field, &Json::from(*x), "a positive number within f32")),
    }
}

/// A reader over a JSON object that remembers its path for messages.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    object: &'a Json,
    path: &'a str,
}

/// Largest size a geometry field may have: far above any model, far below overflow of products of three.
const MAX_FIELD: u64 = 1 << 21;

/// Most layers a model may have: ten times the deepest known, and layer indices stay far inside 16 bits.
pub const MAX_LAYERS: usize = 1024;

impl<'a> Fields<'a> {
    /// A reader of `object`, whose fields are reported as `path.field`.
    pub fn new(object: &'a Json, path: &'a str) -> Self {
        Self { object, path }
    }

    fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.into() } else { format!("{}.{field}", self.path) }
    }

    /// The raw field.
    pub fn get(&self, field: &str) -> Result<&'a Json, GeometryError> {
        self.object.get(field).ok_or_else(|| GeometryError::Missing { field: self.name(field) })
    }

    /// A size from 1 to 2^21.
    pub fn size(&self, field: &str) -> Result<usize, GeometryError> {
        let value = self.get(field)?;
        match value.as_u64() {
            Some(n @ 1..=MAX_FIELD) => Ok(n as usize),
            _ => Err(invalid(&self.name(field), value, format!("an integer from 1 to {MAX_FIELD}"))),
        }
    }

    /// A finite positive number.
    pub fn number(&self, field: &str) -> Result<f64, GeometryError> {
        let value = self.get(field)?;
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(x),
            _ => Err(invalid(&self.name(field), value, "a positive number")),
        }
    }

    /// A boolean.
    pub fn flag(&self, field: &str) -> Result<bool, GeometryError> {
        let value = self.get(field)?;
        value.as_bool().ok_or_else(|| invalid(&self.name(field), value, "true or false"))
    }

    /// A field that must have one exact value.
    pub fn exactly(&self, field: &str, want: &Json) -> Result<(), GeometryError> {
        let value = self.get(field)?;
        if value == want { Ok(()) } else { Err(invalid(&self.name(field), value, want.to_string())) }
    }
}

/// A GGUF string.
pub fn gguf_string(metadata: &Metadata, key: &str) -> Result<String, GeometryError> {
    present(metadata, key)?;
    metadata.str(key).map(str::to_owned).map_err(|e| wrong(key, &e.to_string(), "a string"))
}

/// A GGUF integer from 1 to 2^21.
pub fn gguf_size(metadata: &Metadata, key: &str) -> Result<usize, GeometryError> {
    present(metadata, key)?;
    match metadata.u64(key) {
        Ok(n @ 1..=MAX_FIELD) => Ok(n as usize),
        Ok(n) => Err(wrong(key, &n.to_string(), &format!("an integer from 1 to {MAX_FIELD}"))),
        Err(e) => Err(wrong(key, &e.to_string(), "an integer")),
    }
}

/// A GGUF positive float.
pub fn gguf_number(metadata: &Metadata, key: &str) -> Result<f64, GeometryError> {
    present(metadata, key)?;
    match metadata.f64(key) {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(x),
        Ok(x) => Err(wrong(key, &x.to_string(), "a positive number")),
        Err(e) => Err(wrong(key, &e.to_string(), "a positive number")),
    }
}

fn present(metadata: &Metadata, key: &str) -> Result<(), GeometryError> {
    if metadata.has(key) { Ok(()) } else { Err(GeometryError::Missing { field: key.into() }) }
}

fn wrong(field: &str, value: &str, expected: &str) -> GeometryError {
    GeometryError::Invalid { field: field.into(), value: value.into(), expected: expected.into() }
}
