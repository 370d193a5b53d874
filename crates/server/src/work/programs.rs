//! Commands of owners: started in a shell, with the end of their output kept, and killed with all
//! processes that they started.

use std::fs;
use std::io::{PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::daemon::data_dir::guard;

/// Wait for the end of a killed command. One that waits in the kernel, as for a file system that it
/// has frozen itself, may end only after the next command has run.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a command's output that are kept: its end.
const SAID_MAX: usize = 1024;
/// Wait for the output of a command after its end: processes that it left running may hold its
/// output open for ever.
const SAID_PATIENCE: Duration = Duration::from_millis(200);
/// Interval at which a running command is checked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Starts a command, in a process group of its own. `input` is written to its standard input as it
/// reads it; without one it reads nothing.
pub(crate) fn start(
    text: &str,
    variables: &[(&str, &str)],
    input: Option<Vec<u8>>,
) -> std::io::Result<(Child, Said)> {
    let (reader, writer) = std::io::pipe()?;
    let said = Said::read(reader)?;
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(guard::shell_text(text)).envs(variables.iter().copied());
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    command.stdin(stdin).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    // This side's ends of the pipe go with `command`.
    let mut child = command.spawn()?;
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        // A command that reads nothing blocks this until it ends.
        let write = move || drop(pipe.write_all(&input));
        if let Err(error) = std::thread::Builder::new().name("hook".to_owned()).spawn(write) {
            end(child);
            return Err(error);
        }
    }
    Ok((child, said))
}

/// The end of a command's output. It is read as long as any process that the command has started
/// may write, as a full pipe would block that.
pub(crate) struct Said {
    end: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Said {
    fn read(mut from: PipeReader) -> std::io::Result<Self> {
        let end = Arc::new(Mutex::new(Vec::new()));
        let shared = end.clone();
        let read = move || {
            let mut buffer = [0; SAID_MAX];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let mut end = shared.lock();
                end.extend_from_slice(&buffer[..count]);
                let surplus = end.len().saturating_sub(SAID_MAX);
                end.drain(..surplus);
            }
        };
        let reading = std::thread::Builder::new().name("hook".to_owned()).spawn(read)?;
        Ok(Self { end, reading })
    }

    /// Its last line, as the end of a sentence.
    pub(crate) fn last(&self) -> String {
        let until = Instant::now() + SAID_PATIENCE;
        while !self.reading.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        let end = self.end.lock();
        let text = String::from_utf8_lossy(&end);
        match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            Some(line) => format!("; it said: {line}"),
            None => String::new(),
        }
    }
}

/// The processes whose initial environment has this variable with a matching value, except this
/// one, as far as it may inspect them.
pub(crate) fn processes_with(variable: &str, is_it: impl Fn(&[u8]) -> bool) -> Vec<Pid> {
    let has_it = |entry: &[u8]| {
        let value = entry.strip_prefix(variable.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(&is_it)
    };
    let of = |process: fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        // It is empty for a zombie.
        let environment = fs::read(Path::new(&process.path()).join("environ")).ok()?;
        let is_other = pid != rustix::process::getpid();
        (is_other && environment.split(|byte| *byte == 0).any(has_it)).then_some(pid)
    };
    fs::read_dir("/proc").map(|all| all.flatten().filter_map(of).collect()).unwrap_or_default()
}

/// Kills a command and all processes that it has started. False if it does not end for now: a
/// separate thread waits for it.
pub(crate) fn end(mut child: Child) -> bool {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let until = Instant::now() + END_PATIENCE;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() >= until {
            // Without a thread for it, the zombie stays until the server exits.
            let wait = move || drop(child.wait());
            drop(std::thread::Builder::new().name("hook".to_owned()).spawn(wait));
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    true
}
