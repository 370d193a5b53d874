//! The block servers that Cairn is measured against.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::{Server, run};

/// nbdkit's file plugin with its default threads, on a preallocated file.
pub(crate) fn nbdkit_file(folder: &Path, name: &str, bytes: u64) -> Result<Server> {
    let data = folder.join(format!("{name}.data"));
    if !data.exists() {
        run(Command::new("fallocate").arg("-l").arg(bytes.to_string()).arg(&data))?;
    }
    let socket = folder.join(format!("{name}.sock"));
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(&socket).arg("file").arg(&data);
    Server::start(command, &socket)
}

/// qemu-nbd with its default cache and threads.
fn qemu_nbd(format: &str, data: &Path, socket: &Path) -> Result<Server> {
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--shared=8", "--discard=unmap", "--format", format, "--socket"]);
    command.arg(socket).arg(data);
    Server::start(command, socket)
}

/// qemu-nbd on a preallocated raw file.
pub(crate) fn qemu_raw(folder: &Path, bytes: u64) -> Result<Server> {
    let data = folder.join("qemu-raw.data");
    run(Command::new("fallocate").arg("-l").arg(bytes.to_string()).arg(&data))?;
    qemu_nbd("raw", &data, &folder.join("qemu-raw.sock"))
}

/// qemu-nbd on a qcow2 image with external snapshots: the form whose writes cost least.
pub(crate) struct Qcow2 {
    folder: PathBuf,
    images: usize,
    server: Option<Server>,
}

impl Qcow2 {
    /// An empty image.
    pub(crate) fn new(folder: &Path, bytes: u64) -> Result<Self> {
        let mut qcow2 = Self { folder: folder.to_owned(), images: 1, server: None };
        let image = qcow2.image(0);
        run(Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2"])
            .arg(image)
            .arg(bytes.to_string()))?;
        qcow2.serve()?;
        Ok(qcow2)
    }

    fn image(&self, index: usize) -> PathBuf {
        self.folder.join(format!("snapshot{index}.qcow2"))
    }

    fn serve(&mut self) -> Result<()> {
        let image = self.image(self.images - 1);
        self.server = Some(qemu_nbd("qcow2", &image, &self.folder.join("qcow2.sock"))?);
        Ok(())
    }

    /// The running server.
    pub(crate) fn server(&self) -> Result<&Server> {
        self.server.as_ref().ok_or_else(|| anyhow::anyhow!("qemu-nbd is not running"))
    }

    /// Puts an empty image on top of the newest one, and serves it.
    pub(crate) fn push(&mut self) -> Result<()> {
        self.server = None;
        let (below, above) = (self.image(self.images - 1), self.image(self.images));
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"]).arg(below).arg(above);
        run(&mut create)?;
        self.images += 1;
        self.serve()
    }

    /// Discards the newest image, with its writes, and serves the one below.
    pub(crate) fn pop(&mut self) -> Result<()> {
        self.server = None;
        std::fs::remove_file(self.image(self.images - 1))?;
        self.images -= 1;
        self.serve()
    }
}
