//! Writing a checkpoint piece by piece. One idea: all tensors are declared first, so the header is final before the
//! first byte of data, and a file of any size is written with a fixed buffer.

use std::fs::File;
use std::io::{self, BufWriter, Write};
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

/// Refuses to begin `bytes` on a file system that has less room. One that does not say is tried.
pub(crate) fn room_for(dir: &Path, bytes: u64) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    match kernels::sys::disk::free_bytes(dir) {
        Ok(free) if free < bytes => {
            let what = format!("{bytes} bytes are to be written, the file system has {free} free");
            Err(io::Error::new(io::ErrorKind::StorageFull, what))
        }
        _ => Ok(()),
    }
}

/// The data section of a file that is being written, under another name until it is whole: tensors in declared order, each padded to `alignment`.
#[derive(Debug)]
pub struct TensorStream {
    path: PathBuf,
    /// Where it is written; taken when it has its own name.
    part: Option<PathBuf>,
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
        let mut total = head.len() as u64;
        for tensor in tensors {
            let bytes = tensor.bytes()?;
            total = total.saturating_add(bytes).saturating_add(alignment);
            lengths.push((tensor.name.clone(), bytes));
        }
        let io = |e| ContainerError::io(path, e);
        if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            return Err(io(io::Error::new(io::ErrorKind::AlreadyExists, "not a file, and not replaced")));
        }
        room_for(path.parent().unwrap_or(Path::new(".")), total).map_err(io)?;
        let part = path.with_extension(format!("part.{}", std::process::id()));
        let out = BufWriter::with_capacity(1 << 20, File::create(&part).map_err(io)?);
        let (path, part) = (path.to_owned(), Some(part));
        let mut stream = TensorStream { path, part, out, lengths, current: 0, written: 0, alignment };
        stream.put(head)?;
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
        self.put(chunk)?;
        self.written += chunk.len() as u64;
        self.skip_complete()
    }

    fn skip_complete(&mut self) -> Result<(), ContainerError> {
        while let Some((_, bytes)) = self.lengths.get(self.current).filter(|t| t.1 == self.written) {
            let padding = bytes.next_multiple_of(self.alignment) - bytes;
            // Alignment is at most 1 MiB, so the padding is small.
            self.put(&vec![0; padding as usize])?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ContainerError> {
        self.out.write_all(bytes).map_err(|e| ContainerError::io(&self.path, e))
    }

    /// Ends the file and gives it its name; an error where a tensor is incomplete.
    pub fn finish(mut self) -> Result<(), ContainerError> {
        if let Some((name, left)) = self.current() {
            let why = format!("{left} bytes were never written");
            return Err(ContainerError::Write { tensor: name.to_owned(), why });
        }
        self.out.flush().map_err(|e| ContainerError::io(&self.path, e))?;
        if let Some(part) = &self.part {
            std::fs::rename(part, &self.path).map_err(|e| ContainerError::io(&self.path, e))?;
        }
        self.part = None;
        Ok(())
    }
}

impl Drop for TensorStream {
    /// A file that was not finished is of no use.
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = std::fs::remove_file(part);
        }
    }
}
