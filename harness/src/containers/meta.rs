//! GGUF key/values, typed. One idea: a reader asks for a key *as* a type and gets it or an error that names both.

use std::collections::BTreeMap;

use super::ContainerError;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(MetaArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array; elements of one type, held as compactly as the file holds them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum MetaArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<MetaArray>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl MetaArray {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            MetaArray::U8(v) => v.len(),
            MetaArray::I8(v) => v.len(),
            MetaArray::U16(v) => v.len(),
            MetaArray::I16(v) => v.len(),
            MetaArray::U32(v) => v.len(),
            MetaArray::I32(v) => v.len(),
            MetaArray::F32(v) => v.len(),
            MetaArray::Bool(v) => v.len(),
            MetaArray::String(v) => v.len(),
            MetaArray::Array(v) => v.len(),
            MetaArray::U64(v) => v.len(),
            MetaArray::I64(v) => v.len(),
            MetaArray::F64(v) => v.len(),
        }
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl MetaValue {
    /// The type's name, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            MetaValue::U8(_) => "u8",
            MetaValue::I8(_) => "i8",
            MetaValue::U16(_) => "u16",
            MetaValue::I16(_) => "i16",
            MetaValue::U32(_) => "u32",
            MetaValue::I32(_) => "i32",
            MetaValue::F32(_) => "f32",
            MetaValue::Bool(_) => "bool",
            MetaValue::String(_) => "string",
            MetaValue::Array(_) => "array",
            MetaValue::U64(_) => "u64",
            MetaValue::I64(_) => "i64",
            MetaValue::F64(_) => "f64",
        }
    }
}

/// All key/values of a file, sorted by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    map: BTreeMap<String, MetaValue>,
}

impl Metadata {
    /// Adds a key; the value that was there before comes back.
    pub fn insert(&mut self, key: impl Into<String>, value: MetaValue) -> Option<MetaValue> {
        self.map.insert(key.into(), value)
    }

    /// All keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &MetaValue)> {
        self.map.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A value of any type, if the key is there.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.map.get(key)
    }

    /// Whether a key is there.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    fn need(&self, key: &str) -> Result<&MetaValue, ContainerError> {
        self.get(key).ok_or_else(|| ContainerError::MissingKey { key: key.to_owned() })
    }

    fn wrong(key: &str, found: &MetaValue, wanted: &'static str) -> ContainerError {
        ContainerError::KeyType { key: key.to_owned(), found: found.kind(), wanted }
    }

    /// A non-negative integer of any width.
    pub fn u64(&self, key: &str) -> Result<u64, ContainerError> {
        let value = self.need(key)?;
        let number = match value {
            MetaValue::U8(v) => Some(u64::from(*v)),
            MetaValue::U16(v) => Some(u64::from(*v)),
            MetaValue::U32(v) => Some(u64::from(*v)),
            MetaValue::U64(v) => Some(*v),
            MetaValue::I8(v) => u64::try_from(*v).ok(),
            MetaValue::I16(v) => u64::try_from(*v).ok(),
            MetaValue::I32(v) => u64::try_from(*v).ok(),
            MetaValue::I64(v) => u64::try_from(*v).ok(),
            _ => None,
        };
        number.ok_or_else(|| Self::wrong(key, value, "a non-negative integer"))
    }

    /// As [`Metadata::u64`], in 32 bits.
    pub fn u32(&self, key: &str) -> Result<u32, ContainerError> {
        u32::try_from(self.u64(key)?).or_else(|_| Err(Self::wrong(key, self.need(key)?, "a 32-bit integer")))
    }

    /// A float of either width.
    pub fn f64(&self, key: &str) -> Result<f64, ContainerError> {
        match self.need(key)? {
            MetaValue::F32(v) => Ok(f64::from(*v)),
            MetaValue::F64(v) => Ok(*v),
            other => Err(Self::wrong(key, other, "a float")),
        }
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<bool, ContainerError> {
        match self.need(key)? {
            MetaValue::Bool(v) => Ok(*v),
            other => Err(Self::wrong(key, other, "a bool")),
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<&str, ContainerError> {
        match self.need(key)? {
            MetaValue::String(v) => Ok(v),
            other => Err(Self::wrong(key, other, "a string")),
        }
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<&[String], ContainerError> {
        match self.need(key)? {
            MetaValue::Array(MetaArray::String(v)) => Ok(v),
            other => Err(Self::wrong(key, other, "an array of strings")),
        }
    }

    /// An array of integers of any width.
    pub fn ints(&self, key: &str) -> Result<Vec<i64>, ContainerError> {
        let value = self.need(key)?;
        let MetaValue::Array(array) = value else {
            return Err(Self::wrong(key, value, "an array of integers"));
        };
        Ok(match array {
            MetaArray::U8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            MetaArray::I8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            MetaArray::U16(v) => v.iter().map(|&x| i64::from(x)).collect(),
            MetaArray::I16(v) => v.iter().map(|&x| i64::from(x)).collect(),
            MetaArray::U32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            MetaArray::I32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            MetaArray::I64(v) => v.clone(),
            MetaArray::U64(v) => v
                .iter()
                .map(|&x| i64::try_from(x).map_err(|_| Self::wrong(key, value, "integers of 63 bits")))
                .collect::<Result<_, _>>()?,
            _ => return Err(Self::wrong(key, value, "an array of integers")),
        })
    }
}
