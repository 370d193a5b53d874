//! A terminal as a screen of its own, and as it was before when this is over, however it ends.

use std::io::{self, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not know its own.
const USUAL: (usize, usize) = (80, 24);
/// The screen. Dropping it gives the terminal back.
pub struct Screen {
    before: Termios,
}

impl Screen {
    /// Takes the terminal: keys come one by one and are not shown.
    pub fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut own = before.clone();
        own.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
        own.special_codes[SpecialCodeIndex::VMIN] = 0;
        own.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &own)?;
        let screen = Self { before };
        let mut out = io::stdout().lock();
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(screen)
    }

    /// Columns and lines.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => USUAL,
        }
    }

    /// Shows these lines and nothing else.
    pub fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (index, line) in lines.iter().enumerate() {
            // The last line without a new one: the screen would scroll.
            text += if index == 0 { "" } else { "\n" };
            text += line;
            text += "\x1b[K";
        }
        text += "\x1b[J";
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// The keys that were pressed since the last time; none if the terminal is closed.
    pub fn keys(&self) -> Option<Vec<u8>> {
        let stdin = io::stdin();
        let (mut keys, mut pressed) = ([0; 64], Vec::new());
        loop {
            let mut waited = [PollFd::new(&stdin, PollFlags::IN)];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            if !poll(&mut waited, Some(&at_once)).is_ok_and(|ready| ready > 0) {
                return Some(pressed);
            }
            match rustix::io::read(&stdin, &mut keys) {
                // Ready, and nothing to read: the terminal is closed.
                Ok(0) | Err(_) => return None,
                Ok(count) => pressed.extend_from_slice(&keys[..count]),
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
