//! A request body as named fields, so that each refusal can name its own.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of a JSON object that nobody has taken yet.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a JSON object.
    ///
    /// # Errors
    /// `400` when the bytes are no JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let bad = |message: String| ApiError { param: None, ..ApiError::param("", message) };
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields(map)),
            Ok(_) => Err(bad("the body must be a JSON object".into())),
            Err(error) => Err(bad(format!("the body is not valid JSON: {error}"))),
        }
    }

    /// Takes a field; absent and `null` are the same.
    ///
    /// # Errors
    /// `400` naming the field when its type is wrong.
    pub fn take<V: DeserializeOwned>(&mut self, name: &str) -> Result<Option<V>, ApiError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => serde_json::from_value(value).map(Some).map_err(|error| {
                ApiError::param(name, format!("`{name}`: {error}")).with_code("invalid_type")
            }),
        }
    }

    /// Takes a number and checks its range.
    ///
    /// # Errors
    /// `400` naming the field, its value and its limits.
    pub fn number<V>(&mut self, name: &str, range: RangeInclusive<V>) -> Result<Option<V>, ApiError>
    where
        V: DeserializeOwned + PartialOrd + Display,
    {
        let taken: Option<V> = self.take(name)?;
        match taken {
            Some(value) if !range.contains(&value) => Err(ApiError::param(
                name,
                format!("`{name}` is {value}, must be from {} to {}", range.start(), range.end()),
            )),
            other => Ok(other),
        }
    }

    /// Refuses a field unless `harmless` says that its value asks for nothing.
    ///
    /// # Errors
    /// `400` naming the field.
    pub fn unsupported(&mut self, name: &str, harmless: fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.0.remove(name) {
            Some(value) if !value.is_null() && !harmless(&value) => {
                let message = format!("`{name}` is not supported by this server");
                Err(ApiError::param(name, message).with_code("unsupported_parameter"))
            }
            _ => Ok(()),
        }
    }

    /// Drops fields that carry no meaning for generation, then refuses the rest.
    ///
    /// # Errors
    /// `400` naming the first unknown field.
    pub fn finish(mut self, ignored: &[&str]) -> Result<(), ApiError> {
        for name in ignored {
            self.0.remove(*name);
        }
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::param(name, format!("unknown request field `{name}`"))
                .with_code("unknown_parameter")),
        }
    }
}
