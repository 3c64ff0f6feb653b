//! What can be wrong with a checkpoint. Each message names the file, the field, the value found and what is allowed.

use std::path::PathBuf;

use thiserror::Error;

/// Why a checkpoint was refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// The operating system refused a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Nothing at the path is a checkpoint.
    #[error("{}: no checkpoint here: {why}", path.display())]
    NotACheckpoint {
        /// The path that was asked for.
        path: PathBuf,
        /// What was looked for.
        why: String,
    },
    /// A field of a file's header is outside its limits.
    #[error("{file}: {field} is {value}; allowed: {limit}")]
    Header {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The value found.
        value: String,
        /// What is allowed.
        limit: String,
    },
    /// A field of a tensor is outside its limits.
    #[error("{file}: tensor `{tensor}`: {field} is {value}; allowed: {limit}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The field.
        field: &'static str,
        /// The value found.
        value: String,
        /// What is allowed.
        limit: String,
    },
    /// Two tensors claim the same bytes.
    #[error("{file}: tensors `{first}` and `{second}` overlap at byte {at} of the data")]
    Overlap {
        /// The file.
        file: String,
        /// The tensor with the lower start.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// Where the second one starts.
        at: u64,
    },
    /// Bytes between two tensors belong to neither.
    #[error("{file}: {bytes} bytes before tensor `{tensor}` belong to no tensor")]
    Gap {
        /// The file.
        file: String,
        /// The tensor after the gap, or `(end of file)`.
        tensor: String,
        /// Length of the gap.
        bytes: u64,
    },
    /// A name occurs twice.
    #[error("{file}: {what} `{name}` occurs twice")]
    Duplicate {
        /// The file.
        file: String,
        /// Tensor, metadata key or JSON key.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A GGUF type, a dtype string or a metadata type that is not known.
    #[error("{file}: {subject}: unknown type {value}")]
    UnknownType {
        /// The file.
        file: String,
        /// The tensor or key.
        subject: String,
        /// The value found.
        value: String,
    },
    /// The header is not the JSON it should be.
    #[error("{file}: {why}")]
    Json {
        /// The file.
        file: String,
        /// The parser's message.
        why: String,
    },
    /// A part of a sharded checkpoint is missing.
    #[error("{}: shard {number} of {count} is missing (needed by {needed_by})", path.display())]
    MissingShard {
        /// The file that should be there.
        path: PathBuf,
        /// Its one-based number.
        number: u64,
        /// Parts in all.
        count: u64,
        /// What told us so.
        needed_by: String,
    },
    /// A part of a split GGUF that says it is another one.
    #[error("{file}: {field} is {value}, but {expected} was expected; open the first shard ({first})")]
    WrongShard {
        /// The file.
        file: String,
        /// `split.no`, `split.count` or `split.tensors.count`.
        field: &'static str,
        /// The value found.
        value: u64,
        /// The value that belongs there.
        expected: u64,
        /// The file to open.
        first: String,
    },
    /// Two files were joined into one.
    #[error(
        "{file}: a second GGUF header starts at byte {at}: the shards were concatenated; keep them as separate files"
    )]
    SecondHeader {
        /// The file.
        file: String,
        /// Where the second magic is.
        at: u64,
    },
    /// A metadata key is missing.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata key holds another type.
    #[error("metadata key `{key}` holds {found}, but {wanted} is needed")]
    KeyType {
        /// The key.
        key: String,
        /// The type found.
        found: &'static str,
        /// The type that is needed.
        wanted: &'static str,
    },
    /// A tensor that is needed is not there.
    #[error("tensor `{name}` is not in the checkpoint")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// Tensors that nothing uses: loading a part of a checkpoint silently is refused.
    #[error("{count} tensors of the checkpoint are not used by this model, first ones: {names}")]
    Unused {
        /// How many.
        count: usize,
        /// Up to sixteen of them.
        names: String,
    },
    /// A writer was used out of order.
    #[error("writing `{tensor}`: {why}")]
    Write {
        /// The tensor at hand.
        tensor: String,
        /// What is wrong.
        why: String,
    },
}

impl ContainerError {
    pub(crate) fn header(
        file: &str,
        field: impl Into<String>,
        value: impl ToString,
        limit: impl ToString,
    ) -> Self {
        ContainerError::Header {
            file: file.to_owned(),
            field: field.into(),
            value: value.to_string(),
            limit: limit.to_string(),
        }
    }

    pub(crate) fn tensor(
        file: &str,
        tensor: &str,
        field: &'static str,
        value: impl ToString,
        limit: impl ToString,
    ) -> Self {
        ContainerError::Tensor {
            file: file.to_owned(),
            tensor: tensor.to_owned(),
            field,
            value: value.to_string(),
            limit: limit.to_string(),
        }
    }

    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        ContainerError::Io { path: path.to_owned(), source }
    }
}
