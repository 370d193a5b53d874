//! Readable roots, and their readers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use cairn_base::{FileId, Generation};
use cairn_format::{Inode, Root};

use crate::commit::space::Redirects;
use crate::locks::{Condvar, Mutex};

/// A readable root. While a reference to it exists, the blocks that it reaches are not reused
/// (`release` has the rule).
pub(crate) struct Committed {
    pub(crate) root: Root,
    pub(crate) redirects: Arc<Redirects>,
    /// Inodes that were looked up before; shared by all readers of the root.
    pub(crate) inodes: Arc<Mutex<HashMap<FileId, Option<Inode>>>>,
    /// Notified when the root has no reader any more; `None` for an image, which no caller waits
    /// for.
    ended: Option<Arc<Ended>>,
}

impl Committed {
    /// The root of the active state, for short readers.
    pub(crate) fn active(root: Root, redirects: Arc<Redirects>, ended: Arc<Ended>) -> Arc<Self> {
        Arc::new(Self { root, redirects, inodes: Arc::default(), ended: Some(ended) })
    }

    /// A root for a holder that may keep it for any time and reads only blocks that it reaches.
    pub(crate) fn image(root: Root, redirects: Arc<Redirects>) -> Arc<Self> {
        Arc::new(Self { root, redirects, inodes: Arc::default(), ended: None })
    }

    /// The same root as an image.
    pub(crate) fn as_image(&self) -> Arc<Self> {
        let (redirects, inodes) = (self.redirects.clone(), self.inodes.clone());
        Arc::new(Self { root: self.root, redirects, inodes, ended: None })
    }

    pub(crate) fn is_image(&self) -> bool {
        self.ended.is_none()
    }
}

impl Drop for Committed {
    fn drop(&mut self) {
        if let Some(ended) = &self.ended {
            ended.tell();
        }
    }
}

/// Notifies when short readers end. Its lock is the last one to be taken: a root may be dropped
/// while any other is held.
#[derive(Default)]
pub(crate) struct Ended {
    waiting: Mutex<u64>,
    told: Condvar,
}

impl Ended {
    pub(crate) fn tell(&self) {
        let waiting = self.waiting.lock();
        if *waiting > 0 {
            self.told.notify_all();
        }
    }

    /// Waits until none of these readers is left. A count that has reached zero stays zero, and the
    /// reader that brought it there notifies.
    pub(crate) fn wait(&self, readers: &[Reader]) {
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        while readers.iter().any(Reader::is_alive) {
            self.told.wait(&mut waiting);
        }
        *waiting -= 1;
    }

    /// Threads that wait.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(crate) fn waiting(&self) -> u64 {
        *self.waiting.lock()
    }
}

/// A reader of a root that is not the present one, or of an image of the present one.
#[derive(Clone)]
pub(crate) struct Reader {
    root: Weak<Committed>,
    generation: Generation,
    is_image: bool,
}

impl Reader {
    pub(crate) fn of(root: &Arc<Committed>) -> Self {
        let (generation, is_image) = (root.root.generation, root.is_image());
        Self { root: Arc::downgrade(root), generation, is_image }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.root.strong_count() > 0
    }

    pub(crate) fn is_short(&self) -> bool {
        !self.is_image
    }

    pub(crate) fn upgrade(&self) -> Option<Arc<Committed>> {
        self.root.upgrade()
    }

    /// True when it may read a block that was born in `birth`.
    pub(crate) fn may_read(&self, birth: Generation) -> bool {
        !self.is_image || birth <= self.generation
    }

    pub(crate) fn key(&self) -> usize {
        self.root.as_ptr() as usize
    }
}
