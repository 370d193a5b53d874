//! Programs of the node: `mount`, `mkfs`, and those that attach disks.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tonic::Status;

/// Where programs and the files of the kernel are.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Run them in the mount namespace of process 1: of the host, from inside a container.
    pub on_host: bool,
    /// Look for them here first.
    pub folder: Option<PathBuf>,
    /// Where sysfs is.
    pub sys: PathBuf,
    /// Where devices are.
    pub dev: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self { on_host: false, folder: None, sys: "/sys".into(), dev: "/dev".into() }
    }
}

/// Most bytes of a program's output in an error.
const OUTPUT_MAX: usize = 1000;
/// Where programs of administrators are, which the path of a service may lack.
const ADMINISTRATORS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

impl Programs {
    /// The mounts that these programs see.
    pub(super) fn mountinfo(&self) -> PathBuf {
        match self.on_host {
            true => crate::host::process().join("mountinfo"),
            false => "/proc/self/mountinfo".into(),
        }
    }

    /// A path of the host, as this process sees it.
    pub(super) fn view(&self, path: &Path) -> PathBuf {
        match self.on_host {
            true => crate::host::process().join("root").join(path.strip_prefix("/").unwrap_or(path)),
            false => path.to_owned(),
        }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Result<Command, Status> {
        let mut command = match self.on_host {
            true => {
                let own = std::env::current_exe()
                    .map_err(|error| Status::internal(format!("the driver does not find itself: {error}")))?;
                let mut command = Command::new(own);
                command.arg(crate::host::COMMAND).arg(program);
                command
            }
            false => Command::new(program),
        };
        let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
        let first = self.folder.as_ref().map_or(String::new(), |folder| format!("{}:", folder.display()));
        command
            .args(arguments)
            .env("PATH", format!("{first}{path}:{ADMINISTRATORS}"))
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a program; its exit code, and its output of both kinds.
    pub(super) fn code(&self, program: &str, arguments: &[&str]) -> Result<(i32, String), Status> {
        let done = self.command(program, arguments)?.output();
        let done = done.map_err(|error| Status::internal(format!("{program} does not start: {error}")))?;
        let mut output = String::from_utf8_lossy(&done.stdout).into_owned();
        output.push_str(&String::from_utf8_lossy(&done.stderr));
        Ok((done.status.code().unwrap_or(-1), output))
    }

    /// Runs a program that must succeed; its output.
    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Status> {
        match self.code(program, arguments)? {
            (0, output) => Ok(output),
            (code, output) => {
                let output = output.trim();
                let end = output.char_indices().nth(OUTPUT_MAX).map_or(output.len(), |(at, _)| at);
                let words = arguments.join(" ");
                Err(Status::internal(format!("{program} {words} failed with {code}: {}", &output[..end])))
            }
        }
    }

    /// Starts a program that stays.
    pub(super) fn start(&self, program: &str, arguments: &[&str]) -> Result<Child, Status> {
        use std::os::unix::process::CommandExt;
        let mut command = self.command(program, arguments)?;
        command.stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        command.spawn().map_err(|error| Status::internal(format!("{program} does not start: {error}")))
    }
}
