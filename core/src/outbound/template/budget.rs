//! The budget of a rendering: the bytes that it may still read and write, its time, and a writer
//! that stays within both.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minijinja::{Error, ErrorKind};

/// Largest body that a template may make, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 1024 * 1024;

/// Most steps of one rendering.
pub const MAX_STEPS: u64 = 50_000;

/// Most bytes that one rendering may read and write, counted each time.
pub const MAX_WORK_BYTES: u64 = 32 * 1024 * 1024;

/// The remaining budget of one rendering.
#[derive(Clone)]
pub(super) struct RenderBudget(Arc<RenderLimits>);

struct RenderLimits {
    bytes: AtomicU64,
    is_late: AtomicBool,
    is_over: Box<dyn Fn() -> bool + Send + Sync>,
}

impl RenderBudget {
    /// Creates the budget of a rendering that ends soon after `is_over` returns true.
    pub(super) fn new(is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let bytes = AtomicU64::new(MAX_WORK_BYTES);
        Self(Arc::new(RenderLimits {
            bytes,
            is_late: AtomicBool::new(false),
            is_over: Box::new(is_over),
        }))
    }

    /// Counts `bytes`. Returns false if the rendering must end.
    pub(super) fn goes_on(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(1);
        let left = self.0.bytes.load(Ordering::Relaxed).saturating_sub(bytes);
        self.0.bytes.store(left, Ordering::Relaxed);
        if (self.0.is_over)() {
            self.0.is_late.store(true, Ordering::Relaxed);
        }
        self.ended().is_none()
    }

    /// Counts `bytes`, and fails if the rendering must end.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        // `render` reports the reason for the end.
        if self.goes_on(bytes) {
            Ok(())
        } else {
            Err(Error::from(ErrorKind::OutOfFuel))
        }
    }

    /// Returns the reason for which the rendering must end, if there is one.
    pub(super) fn ended(&self) -> Option<String> {
        match () {
            () if self.0.is_late.load(Ordering::Relaxed) => Some("takes too long".to_owned()),
            () if self.0.bytes.load(Ordering::Relaxed) == 0 => {
                Some(format!("reads and writes more than {MAX_WORK_BYTES} bytes"))
            }
            () => None,
        }
    }
}

impl fmt::Debug for RenderBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderBudget").finish_non_exhaustive()
    }
}

/// A writer for a bounded number of bytes, as long as the rendering may go on.
pub(super) struct BoundedWriter<'w> {
    pub(super) bytes: Vec<u8>,
    work: &'w RenderBudget,
}

impl<'w> BoundedWriter<'w> {
    /// Creates an empty writer, whose bytes count in `work`.
    pub(super) fn new(work: &'w RenderBudget) -> Self {
        Self {
            bytes: Vec::new(),
            work,
        }
    }
}

impl Write for BoundedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES || !self.work.goes_on(bytes.len()) {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
