//! Writing a checkpoint piece by piece. One idea: all tensors are declared first, so the header is final before the
//! first byte of data, and a file of any size is written with a fixed buffer.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{ContainerError, Dtype};

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Name.
    pub name: String,
    /// Type.
    pub dtype: Dtype,
    /// Row-major shape, `[out, in]`.
    pub shape: Vec<u64>,
}

impl Declared {
    /// A declaration.
    #[must_use]
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[u64]) -> Declared {
        Declared { name: name.into(), dtype, shape: shape.to_vec() }
    }

    /// Bytes of the tensor, or an error that names it.
    pub fn bytes(&self) -> Result<u64, ContainerError> {
        self.dtype.bytes_of(&self.shape).ok_or_else(|| {
            let limit = format!("rows of whole {}-value {} blocks", self.dtype.block().values, self.dtype);
            ContainerError::tensor("writer", &self.name, "shape", format!("{:?}", self.shape), limit)
        })
    }
}

/// The data section of a file that is being written: tensors in declared order, each padded to `alignment`.
#[derive(Debug)]
pub struct TensorStream {
    path: PathBuf,
    out: BufWriter<File>,
    lengths: Vec<(String, u64)>,
    current: usize,
    written: u64,
    alignment: u64,
}

impl TensorStream {
    pub(crate) fn create(
        path: &Path,
        head: &[u8],
        tensors: &[Declared],
        alignment: u64,
    ) -> Result<TensorStream, ContainerError> {
        let mut lengths = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            lengths.push((tensor.name.clone(), tensor.bytes()?));
        }
        let io = |e| ContainerError::io(path, e);
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(io)?);
        out.write_all(head).map_err(io)?;
        let mut stream =
            TensorStream { path: path.to_owned(), out, lengths, current: 0, written: 0, alignment };
        stream.skip_complete()?;
        Ok(stream)
    }

    /// The tensor that the next bytes belong to, and how many of its bytes are still to come.
    #[must_use]
    pub fn current(&self) -> Option<(&str, u64)> {
        self.lengths.get(self.current).map(|(name, bytes)| (name.as_str(), bytes - self.written))
    }

    /// Writes the next bytes of the current tensor; they must not run over its end.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), ContainerError> {
        let Some((name, left)) = self.current() else {
            let why = format!("{} bytes after the last declared tensor", chunk.len());
            return Err(ContainerError::Write { tensor: "(end)".into(), why });
        };
        if chunk.len() as u64 > left {
            let why = format!("{} bytes, but only {left} are left of it", chunk.len());
            return Err(ContainerError::Write { tensor: name.to_owned(), why });
        }
        self.out.write_all(chunk).map_err(|e| ContainerError::io(&self.path, e))?;
        self.written += chunk.len() as u64;
        self.skip_complete()
    }

    fn skip_complete(&mut self) -> Result<(), ContainerError> {
        while let Some((_, bytes)) = self.lengths.get(self.current).filter(|t| t.1 == self.written) {
            let padding = bytes.next_multiple_of(self.alignment) - bytes;
            // Alignment is at most 1 MiB, so the padding is small.
            self.out.write_all(&vec![0; padding as usize]).map_err(|e| ContainerError::io(&self.path, e))?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Ends the file; an error where a tensor is incomplete.
    pub fn finish(mut self) -> Result<(), ContainerError> {
        if let Some((name, left)) = self.current() {
            let why = format!("{left} bytes were never written");
            return Err(ContainerError::Write { tensor: name.to_owned(), why });
        }
        self.out.flush().map_err(|e| ContainerError::io(&self.path, e))
    }
}
